"""The torch plugin: a process group around every task, as ``torchrun`` sets it up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ...providers.option_names import closest
from ..api import checks
from ..api.errors import SpecError
from ..api.plugin import Plugin, Ports
from ..node.holdings import OWN
from ..runtime.rank_scheduling import sharing
from .client_versions import same_version
from .initialized_group import reused_group
from .rank_layout import Ranks, checked_ranks, interface, own_address, ranks_on, unless_set

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo

LEAVE_S = 5.0  # how long a task waits for its process group to be destroyed
GONE_S = 30.0  # how much longer the next task in the same process waits for that
_COMPILER = "torch._dynamo"  # which the first optimizer of each process would import, for 1.3 s

_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "ncclx", "fake")  # others may be registered on nodes

_ALONE = {  # the variables of a task that is no rank of a broadcast; ranks have theirs from the node
    "WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "NODE_RANK": "0",
    "GROUP_RANK": "0",
}


def torch(
    backend: str | None = None,
    ranks_per_node: Ranks = "auto",
    timeout: float | timedelta | None = None,
    *,
    init: bool = True,
) -> Torch:
    """Run tasks inside ``torch.distributed``: the ranks of a broadcast are one process group, any other task its own.

    Args:
        backend: The backend. Default: nccl if every rank has a GPU, otherwise gloo.
        ranks_per_node: The number of ranks on each node. "auto": one per GPU, at least one.
        timeout: Seconds after which a collective fails. Default: torch's own.
        init: False makes no group, for functions that do it themselves. Each task then runs in a process of its own,
            which has its GPU.

    Raises:
        SpecError: An option is not valid.
    """
    if backend is not None and not isinstance(backend, str):
        raise SpecError(f'plugins.torch: backend takes a name such as "gloo" or "nccl", not {backend!r}.')
    if (
        backend
        and ":" not in backend
        and backend.lower() not in _BACKENDS
        and not backend.lower().endswith("ccl")  # vendors call theirs so: ccl, cncl, mccl
        and (close := closest(backend.lower(), _BACKENDS))
    ):
        own = f'"cpu:{backend},cuda:{backend}"'
        raise SpecError(f"plugins.torch: backend={backend!r}: did you mean {close!r}? One of your own is {own}.")
    ranks = checked_ranks("torch", ranks_per_node)
    if not init:
        if backend is not None or timeout is not None:
            raise SpecError(
                "plugins.torch: backend and timeout are for the group that the plugin makes, and with init=False the "
                "function makes it: give them to its init_process_group."
            )
        return TorchWithoutGroup(ranks=ranks)
    within_s = None if timeout is None else checks.seconds("plugins.torch: timeout", timeout)
    return Torch(backend, ranks, within_s)


@dataclass(frozen=True)
class Torch(Plugin):
    """The plugin that `torch` makes."""

    backend: str | None = None
    ranks: Ranks = "auto"
    timeout_s: float | None = None
    also_on_cpu: bool = False  # with nccl: also exchange tensors in main memory, by gloo

    name: ClassVar[str] = "torch"
    collective: ClassVar[bool] = True
    ports: ClassVar[Ports] = "head"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed", _COMPILER)

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return (same_version("torch"),)

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return ranks_on(facts, self.ranks)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        variables = (
            {} if info.generation else _ALONE | {"MASTER_ADDR": info.head_addr, "MASTER_PORT": str(info.head_port)}
        )
        if (name := interface(own_address(info))) is not None:  # otherwise gloo resolves this host's own name
            variables |= unless_set({"GLOO_SOCKET_IFNAME": name})
        if sharing(info) > 1:  # as torchrun does: otherwise each rank takes every core
            variables |= unless_set({"OMP_NUM_THREADS": "1"})
        return variables

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        import torch as torch_
        import torch.distributed

        device = _device(torch_, info)
        if device is not None:
            torch_.cuda.set_device(device)
        with _threads(torch_), self._group(torch_, info, device):
            yield

    @contextmanager
    def _group(self, torch_: Any, info: InstanceInfo, device: int | None) -> Iterator[None]:
        distributed = torch_.distributed
        _teardown.wait(distributed)
        options: dict[str, Any] = {}
        if self.timeout_s is not None:
            options["timeout"] = timedelta(seconds=self.timeout_s)
        if info.world_size == 1:  # a group of one needs no port, which another process might take
            options["store"] = distributed.HashStore()
        backend = self.backend or ("gloo" if device is None else "nccl")
        if self.also_on_cpu and backend == "nccl":
            backend = "cuda:nccl,cpu:gloo"
        if device is not None and "nccl" in backend:
            options["device_id"] = torch_.device("cuda", device)
        _forget_failures(distributed)
        try:
            with _all_connected(info):
                distributed.init_process_group(backend, rank=info.rank, world_size=info.world_size, **options)
            with reused_group(distributed, backend):
                yield
        finally:  # also for a group that was made and whose barrier failed
            _teardown.start(distributed)


@dataclass(frozen=True)
class TorchWithoutGroup(Torch):
    """The plugin that `torch(init=False)` makes."""

    fresh_process: ClassVar[bool] = True  # the function may leave its group behind, like any script

    @contextmanager
    def _group(self, torch_: Any, info: InstanceInfo, device: int | None) -> Iterator[None]:  # noqa: ARG002
        yield


@contextmanager
def _all_connected(info: InstanceInfo) -> Iterator[None]:
    """Make `init_process_group` wait for all ranks: a function that returns at once might end before others connect.

    Only for this group, as a function may make further groups of some ranks.
    """
    added = unless_set({"TORCH_DIST_INIT_BARRIER": "1"}) if info.world_size > 1 else {}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _threads(torch_: Any) -> Iterator[None]:
    """Use as many threads as the task's environment says, which torch reads only when it is imported."""
    before = torch_.get_num_threads()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        torch_.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch_.set_num_threads(before)


def set_accelerate_device() -> None:
    """Tell accelerate if torch can use only the CPU; otherwise it takes the ranks for unrelated processes.

    Only for processes of a single task, as it sets a variable in the environment.
    """
    import torch as torch_

    kinds: Any = getattr(torch_, "accelerator", torch_.cuda)  # torch.accelerator exists since 2.6
    if not kinds.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


class _GroupTeardown:
    """Destroy process groups in a thread: that may wait for dead or frozen peers, which this process must not."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, distributed: Any) -> None:
        """Destroy the group; go on after `LEAVE_S` in any case."""
        if distributed.is_initialized():  # otherwise the function has destroyed it
            self._thread = threading.Thread(target=_destroy, args=[distributed], daemon=True)
            self._thread.start()
            self._thread.join(LEAVE_S)

    def wait(self, distributed: Any) -> None:
        """Wait until the last group is gone, before the next one is made.

        A group that is not initialized any more may still be clearing data that the next one would write. A group that
        remains after `GONE_S` blocks every later task, too: they would wait for each other for ever.
        """
        if self._thread is not None:
            self._thread.join(GONE_S)
            if not self._thread.is_alive():
                self._thread = None
        if distributed.is_initialized() or self._thread is not None:
            raise RuntimeError("an earlier task left its torch process group in this worker, which cannot be ended")


_teardown = _GroupTeardown()


def _forget_failures(distributed: Any) -> None:
    """Reset torch's count of a process's groups, which also counts one that failed because a peer had died.

    Ranks look for each other under that number, so they would wait for ever for new processes. No group exists now.
    """
    world: Any = getattr(distributed.distributed_c10d, "_world", None)
    if getattr(world, "group_count", 0):
        world.group_count = 0  # as torch does when it destroys the last group


def _destroy(distributed: Any) -> None:
    with suppress(Exception):  # peers may be gone; the outcome of the function counts
        distributed.destroy_process_group()


def _device(torch_: Any, info: InstanceInfo) -> int | None:
    """The index of this rank's GPU; None where not every rank of the node has one.

    Every rank sees all of its node's GPUs, so that they can copy to each other. Tasks in several slots of a node take
    the GPUs in turn.
    """
    if not torch_.cuda.is_available():
        return None
    if OWN in os.environ:  # they are this task's alone, by ``gpus=``
        return 0
    visible: int = torch_.cuda.device_count()
    if info.world_size == 1:
        return info.worker % visible
    if visible >= info.local_world_size:
        return info.local_rank
    return 0 if visible == 1 and info.accelerators >= info.local_world_size else None  # each rank sees only its own
