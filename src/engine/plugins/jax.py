"""The jax plugin: ``jax.distributed`` around every rank. Only this module imports jax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ..api import checks
from ..api.plugin import Plugin, Ports
from .client_versions import same_version
from .rank_layout import Ranks, checked_ranks, devices, endpoint, ranks_on

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo

# a rank that has finished waits for the slowest rank; the task's own timeout limits this wait
SHUTDOWN_S = 30 * 24 * 3600


def jax(
    ranks_per_node: Ranks = 1,
    cpu_devices: int | None = None,
    timeout: float | timedelta | None = None,
) -> Jax:
    """Run the ranks of a broadcast as one JAX program: ``jax.devices()`` returns the devices of all ranks.

    Args:
        ranks_per_node: The number of processes on each node. Default: one for all devices of a node. "auto": one per
            device.
        cpu_devices: The number of devices into which a process divides its CPU.
        timeout: Seconds for all ranks to find each other. Default: JAX's own.

    Raises:
        SpecError: An option is not valid.
    """
    if cpu_devices is not None:
        checks.count("plugins.jax: cpu_devices", cpu_devices)
    within_s = None if timeout is None else checks.seconds("plugins.jax: timeout", timeout)
    return Jax(checked_ranks("jax", ranks_per_node), cpu_devices, within_s)


@dataclass(frozen=True)
class Jax(Plugin):
    """The plugin that `jax` makes."""

    ranks: Ranks = 1
    cpu_devices: int | None = None
    timeout_s: float | None = None

    name: ClassVar[str] = "jax"
    collective: ClassVar[bool] = True
    fresh_process: ClassVar[bool] = True  # JAX's backend cannot be changed once it has started
    ports: ClassVar[Ports] = "head"

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:
        return (same_version("jax", extra="cuda12" if accelerators else ""),)

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return ranks_on(facts, self.ranks)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        own = devices(info)
        variables = {
            "JAX_COORDINATOR_ADDRESS": endpoint(info.head_addr, info.head_port),
            "JAX_NUM_PROCESSES": str(info.world_size),
            "JAX_PROCESS_ID": str(info.rank),
            "JAX_LOCAL_DEVICE_COUNT": str(len(own) or self.cpu_devices or 1),
        }
        if 0 < len(own) < info.accelerators:
            variables["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, own))
        if self.cpu_devices is not None:
            variables["JAX_NUM_CPU_DEVICES"] = str(self.cpu_devices)
        return variables

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        if info.world_size == 1:
            yield
            return
        import jax as framework

        jax_: Any = framework
        options: dict[str, Any] = {} if self.timeout_s is None else {"initialization_timeout": round(self.timeout_s)}
        jax_.distributed.initialize(
            coordinator_address=endpoint(info.head_addr, info.head_port),
            num_processes=info.world_size,
            process_id=info.rank,
            cluster_detection_method="deactivate",  # inside a Slurm job, JAX would use the ranks of the Slurm job
            shutdown_timeout_seconds=SHUTDOWN_S,
            **options,
        )
        yield
        # Not after an error: a failed rank would wait for the others, and the others for the failed rank.
        if _is_used():
            jax_.effects_barrier()
            jax_.block_until_ready(jax_.live_arrays())  # pending computations need the other ranks
        jax_.distributed.shutdown()


def _is_used() -> bool:
    """Return whether JAX has computed anything.

    Listing arrays instead would start the backend and wait for other ranks.
    """
    try:
        from jax._src.xla_bridge import backends_are_initialized  # pyright: ignore[reportMissingImports]
    except ImportError:  # another version of JAX; pickling the results also waits for pending computations
        return False
    return bool(backends_are_initialized())
