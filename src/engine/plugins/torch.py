"""The torch plugin: a process group around every task, as ``torchrun`` sets it up. Only this module imports torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ..api.errors import SpecError
from ..api.plugin import Plugin, Ports
from ..api.settings import seconds
from .places import Ranks, checked_ranks, interface, own_address, ranks_on, sharing, unless_set

if TYPE_CHECKING:
    from ...actors.ports import NodeFacts
    from ..api.instance import InstanceInfo

LEAVE_S = 5.0  # a task waits so long for its process group to be taken down
GONE_S = 30.0  # and the next one in the same process so much longer


def torch(
    backend: str | None = None,
    ranks_per_node: Ranks = "auto",
    timeout: float | timedelta | None = None,
) -> Torch:
    """Run tasks inside ``torch.distributed``: a broadcast's ranks are one process group, any other task one of its own.

    ``backend``: default nccl where every rank has a GPU, else gloo. ``ranks_per_node``: "auto" is one per GPU, at least
    one. ``timeout``: seconds after which a collective fails; default torch's own.

    Raises:
        SpecError
    """
    if backend is not None and not isinstance(backend, str):
        raise SpecError(f'plugins.torch: backend takes a name such as "gloo" or "nccl", not {backend!r}.')
    within_s = None if timeout is None else seconds("plugins.torch: timeout", timeout)
    return Torch(backend, checked_ranks("torch", ranks_per_node), within_s)


@dataclass(frozen=True)
class Torch(Plugin):
    """See `torch`."""

    backend: str | None = None
    ranks: Ranks = "auto"
    timeout_s: float | None = None
    also_on_cpu: bool = False  # where nccl is chosen: tensors in main memory can be exchanged too

    name: ClassVar[str] = "torch"
    collective: ClassVar[bool] = True
    ports: ClassVar[Ports] = "head"
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed")

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return ranks_on(facts, self.ranks)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        variables = {
            "MASTER_ADDR": info.head_addr,
            "MASTER_PORT": str(info.head_port),
            "WORLD_SIZE": str(info.world_size),
            "RANK": str(info.rank),
            "LOCAL_RANK": str(info.local_rank),
            "LOCAL_WORLD_SIZE": str(info.local_world_size),
            "NODE_RANK": str(info.rank // info.local_world_size),
        }
        if (name := interface(own_address(info))) is not None:  # else gloo asks the resolver for this host's own name
            variables |= unless_set({"GLOO_SOCKET_IFNAME": name})
        if sharing(info) > 1:  # torchrun's default: each rank would take every core otherwise
            variables |= unless_set({"OMP_NUM_THREADS": "1"})
        return variables

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        import torch as torch_
        import torch.distributed

        distributed: Any = torch_.distributed
        _leaving.wait(distributed)
        device = _device(torch_, info)
        options: dict[str, Any] = {}
        if self.timeout_s is not None:
            options["timeout"] = timedelta(seconds=self.timeout_s)
        if info.world_size == 1:  # alone: no port needed, and none to be taken by somebody else
            options["store"] = distributed.HashStore()
        backend = self.backend or ("gloo" if device is None else "nccl")
        if self.also_on_cpu and backend == "nccl":
            backend = "cuda:nccl,cpu:gloo"
        if device is not None:
            torch_.cuda.set_device(device)
            if "nccl" in backend:
                options["device_id"] = torch_.device("cuda", device)
        _forget_failures(distributed)
        with _threads(torch_):
            try:
                with _all_connected(info):
                    distributed.init_process_group(backend, rank=info.rank, world_size=info.world_size, **options)
                yield
            finally:  # also of a group that was made, and whose barrier then failed
                _leaving.start(distributed)


@contextmanager
def _all_connected(info: InstanceInfo) -> Iterator[None]:
    """A group is there when all ranks are: else one that returns at once may be gone before others are connected to it.

    Of this group alone: a function may make groups of some ranks without the others.
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
    """As many as the task's environment says: torch was imported, perhaps, before it said so."""
    before = torch_.get_num_threads()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        torch_.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch_.set_num_threads(before)


def tell_accelerate() -> None:
    """Where torch has nothing but the CPU, accelerate must hear it, or it takes the ranks for unrelated processes.

    To be called in a process of the task's own: it stays in the environment.
    """
    import torch as torch_

    kinds: Any = getattr(torch_, "accelerator", torch_.cuda)  # since 2.6
    if not kinds.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


class _Leaving:
    """Takes the process group down, which may wait for peers that are dead or frozen; this process does not."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, distributed: Any) -> None:
        """Destroy the group; go on after `LEAVE_S` in any case."""
        if distributed.is_initialized():  # else the function has done it
            self._thread = threading.Thread(target=_destroy, args=[distributed], daemon=True)
            self._thread.start()
            self._thread.join(LEAVE_S)

    def wait(self, distributed: Any) -> None:
        """Before the next group, the last one must be gone: by then frozen peers are.

        A group that says it is not initialized any more may still be clearing what the next one would write.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(GONE_S)
        if distributed.is_initialized() or (thread is not None and thread.is_alive()):
            raise RuntimeError("an earlier task left its torch process group in this worker, which cannot be ended")


_leaving = _Leaving()


def _forget_failures(distributed: Any) -> None:
    """torch counts the groups of a process, also one that could not be set up because a peer had died, and ranks look
    for each other under that number: with those of new processes they would wait for ever. There is no group now.
    """
    world: Any = getattr(distributed.distributed_c10d, "_world", None)
    if getattr(world, "group_count", 0):
        world.group_count = 0  # as torch does when it takes the last group down


def _destroy(distributed: Any) -> None:
    with suppress(Exception):  # peers may be gone: how the function itself ended is what counts
        distributed.destroy_process_group()


def _device(torch_: Any, info: InstanceInfo) -> int | None:
    """The index of this rank's GPU; None where not every rank of the node has one.

    Every rank sees all of its node's GPUs, so that they can copy to each other. Tasks in several slots of a node take
    the GPUs in turn.
    """
    if not torch_.cuda.is_available():
        return None
    visible: int = torch_.cuda.device_count()
    if info.world_size == 1:
        return info.worker % visible
    if visible >= info.local_world_size:
        return info.local_rank
    return 0 if visible == 1 and info.accelerators >= info.local_world_size else None  # each sees only its own
