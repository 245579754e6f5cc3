"""The torch plugin: a process group around every task, as ``torchrun`` sets it up.

A function that calls ``init_process_group`` itself gets the plugin's group (`reused_group`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ...providers.shared.option_names import closest
from ..api import checks
from ..api.errors import SpecError
from ..api.plugin import Plugin, Ports
from ..node.holdings import OWN
from ..runtime.instance_info import sharing
from .client_versions import same_version
from .rank_layout import Ranks, checked_ranks, interface, own_address, ranks_on, unless_set

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo


_MARK = "finds_the_plugins_group"
_present: list[str] = []  # the backend of the plugin's group while the function runs; otherwise empty


@contextmanager
def reused_group(distributed: Any, backend: str) -> Iterator[None]:
    """Let `init_process_group` return at once during the block, as long as the default group exists.

    The function is replaced once per process and stays replaced: modules imported in the block may keep a reference to
    it.
    """
    original = distributed.init_process_group
    if not hasattr(original, _MARK):
        for module in (distributed, distributed.distributed_c10d):
            module.init_process_group = _finding(distributed, original)
    _present.append(backend)
    try:
        yield
    finally:
        _present.pop()


def _finding(distributed: Any, original: Any) -> Any:
    @wraps(original)
    def init_process_group(*args: Any, **options: Any) -> None:
        if not _present or not distributed.is_initialized():
            original(*args, **options)
            return
        arguments = signature(original).bind(*args, **options).arguments
        refuse_another(arguments, _present[-1], distributed.get_rank(), distributed.get_world_size())
        if arguments.get("timeout") is not None:
            distributed.distributed_c10d._set_pg_timeout(arguments["timeout"])

    setattr(init_process_group, _MARK, True)
    return init_process_group


def refuse_another(args: Mapping[str, Any], backend: str, rank: int, size: int) -> None:
    """Refuse a call for a group that differs from the present one. The call's rendezvous options do not matter.

    Raises:
        SpecError: the call has another backend, rank or world size, or options of the backend.
    """
    backends = {None, "undefined", backend, *(each.rpartition(":")[2] for each in backend.split(","))}
    fits: dict[str, Callable[[Any], bool]] = {
        "backend": lambda value: (value.lower() if isinstance(value, str) else value) in backends,
        "rank": lambda value: value in (-1, rank),
        "world_size": lambda value: value in (-1, None, size),
        "pg_options": lambda value: value is None,
    }
    for name in fits.keys() & args.keys():
        if not fits[name](args[name]):
            raise SpecError(
                f"init_process_group({name}={args[name]!r}) asks for another group than the one that plugins.torch() "
                f"has made, of rank {rank} of {size} with {backend}: use plugins.torch(init=False), with which the "
                "function makes its own."
            )


LEAVE_S = 5.0  # time that a task waits for its process group to be destroyed
GONE_S = 30.0  # further time that the next task in the same process waits for the old process group to be destroyed
_COMPILER = "torch._dynamo"  # the first optimizer of each process would import this module, which takes 1.3 s

# known backends; nodes may have others registered
_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl", "ncclx", "fake")

_ALONE = {  # variables of a task outside a broadcast; ranks get these variables from the node
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
    """Run tasks inside ``torch.distributed``: the ranks of a broadcast form one process group, any other task its own.

    Args:
        backend: The backend. Default: nccl if every rank has a GPU, otherwise gloo.
        ranks_per_node: The number of ranks on each node. "auto": one per GPU, at least one.
        timeout: Seconds after which a collective fails. Default: torch's own.
        init: False makes no group, for functions that make it themselves. Each task then runs in a process of its own,
            which keeps the task's GPU.

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
    also_on_cpu: bool = False  # with nccl: also use gloo, to exchange tensors in main memory

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
        if sharing(info) > 1:  # torchrun does the same; otherwise each rank uses every core
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
        if info.world_size == 1:  # a group of one needs no port; another process might take a chosen port
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
        finally:  # also runs if the group was made and its barrier failed
            _teardown.start(distributed)


@dataclass(frozen=True)
class TorchWithoutGroup(Torch):
    """The plugin that `torch(init=False)` makes."""

    fresh_process: ClassVar[bool] = True  # the function may leave its group initialized, like any script

    @contextmanager
    def _group(self, torch_: Any, info: InstanceInfo, device: int | None) -> Iterator[None]:  # noqa: ARG002
        yield


@contextmanager
def _all_connected(info: InstanceInfo) -> Iterator[None]:
    """Make `init_process_group` wait for all ranks: a function that returns at once might end before others connect.

    Applies only to this group, as a function may make further groups of some of the ranks.
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
    """Set torch's number of threads from the task's environment, which torch reads only when it is imported."""
    before = torch_.get_num_threads()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        torch_.set_num_threads(int(wanted))
    try:
        yield
    finally:
        torch_.set_num_threads(before)


def set_accelerate_device() -> None:
    """Set accelerate to CPU if torch can use only the CPU.

    Otherwise accelerate treats the ranks as unrelated processes. Only for processes that run a single task, as it sets
    an environment variable.
    """
    import torch as torch_

    kinds: Any = getattr(torch_, "accelerator", torch_.cuda)  # torch.accelerator exists since 2.6
    if not kinds.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


class _GroupTeardown:
    """Destroy process groups in a thread: otherwise dead or frozen peers could block this process."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, distributed: Any) -> None:
        """Start to destroy the group; return after `LEAVE_S` at the latest."""
        if distributed.is_initialized():  # otherwise the function has destroyed the group itself
            self._thread = threading.Thread(target=_destroy, args=[distributed], daemon=True)
            self._thread.start()
            self._thread.join(LEAVE_S)

    def wait(self, distributed: Any) -> None:
        """Wait until the last group is destroyed, before the next group is made.

        A group that is not initialized any more may still be clearing data that the next group would write. A group
        that remains after `GONE_S` also blocks every later task: the two groups would wait for each other for ever.
        """
        if self._thread is not None:
            self._thread.join(GONE_S)
            if not self._thread.is_alive():
                self._thread = None
        if distributed.is_initialized() or self._thread is not None:
            raise RuntimeError("an earlier task left its torch process group in this worker, which cannot be ended")


_teardown = _GroupTeardown()


def _forget_failures(distributed: Any) -> None:
    """Reset torch's count of a process's groups, which also counts a group that failed because a peer had died.

    The ranks' rendezvous keys contain this count, so ranks in new processes, with lower counts, would not be found and
    the others would wait for ever. No group exists at this time.
    """
    world: Any = getattr(distributed.distributed_c10d, "_world", None)
    if getattr(world, "group_count", 0):
        world.group_count = 0  # torch does the same when it destroys its last group


def _destroy(distributed: Any) -> None:
    with suppress(Exception):  # peers may be gone; only the function's result counts
        distributed.destroy_process_group()


def _device(torch_: Any, info: InstanceInfo) -> int | None:
    """Return the index of this rank's GPU; None if the node has fewer GPUs than ranks.

    Every rank sees all GPUs of its node, so that GPUs can copy to each other. Tasks in several slots of a node use the
    GPUs in turn.
    """
    if not torch_.cuda.is_available():
        return None
    if OWN in os.environ:  # the visible GPUs belong to this task alone, by ``gpus=``
        return 0
    visible: int = torch_.cuda.device_count()
    if info.world_size == 1:
        return info.worker % visible
    if visible >= info.local_world_size:
        return info.local_rank
    return 0 if visible == 1 and info.accelerators >= info.local_world_size else None  # each rank sees only its own GPU
