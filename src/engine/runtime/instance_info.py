"""A task and its ranks: where a task runs, a rank's part of the data, and the scheduling of ranks.

`instance_info` returns where the task runs, and with which other ranks. `shard` computes a rank's part of the data, on
every rank without communication.

`without_preemption` sets the scheduling policy for ranks that wait for each other, on a host where they occupy all
cores.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from ..api.accelerators import Accelerator
from ..api.instance import InstanceInfo, Peer

if TYPE_CHECKING:
    from random import Random

VARIABLE = "COMPUTE_POOL"  # environment variable of every task, with the information of `instance_info` as JSON


def instance_info() -> InstanceInfo:
    """Return where this task runs, and with which other ranks.

    This also works in processes that a task starts. Outside a pool, the result describes a single rank on this
    computer.
    """
    from ..node.context import current

    context = current()
    if context is not None:
        return _parsed(context.info)
    inherited = os.environ.get(VARIABLE)
    if inherited:
        return _parsed(json.loads(inherited))
    import socket

    hostname = socket.gethostname()
    return InstanceInfo(hostname=hostname, peers=(Peer(0, 0, hostname, "127.0.0.1"),))


def _parsed(facts: Mapping[str, Any]) -> InstanceInfo:
    kind = facts.get("accelerator")
    known: dict[str, Any] = {name: facts[name] for name in InstanceInfo.__match_args__ if name != "accelerator"}
    known["accelerator"] = None if kind is None else Accelerator(kind["type"], kind["count"], kind["memory_gb"])
    known["peers"] = tuple(
        Peer(each["rank"], each["node"], each["hostname"], each["address"], each["port"]) for each in facts["peers"]
    )
    return InstanceInfo(**known)


A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")

Picks = slice | list[int]


@overload
def shard(data: A, /, *, shuffle: bool = ..., seed: int = ..., epoch: int = ..., drop_last: bool = ...) -> A: ...
@overload
def shard(
    data: A, second: B, /, *more: *Ts, shuffle: bool = ..., seed: int = ..., epoch: int = ..., drop_last: bool = ...
) -> tuple[A, B, *Ts]: ...
def shard(  # type: ignore[misc]  # mypy 2.4 does not see that *more takes what *Ts does
    data: Any, /, *more: Any, shuffle: bool = False, seed: int = 0, epoch: int = 0, drop_last: bool = False
) -> Any:
    """Return this rank's part of ``data``: items ``rank``, ``rank + world_size``, ``rank + 2 * world_size``, and so on.

    Each item is in the part of exactly one rank. The result has the type of ``data``: list, tuple, range (a shuffled
    range becomes a list), any other sequence but str, numpy array, torch tensor, pandas frame or series (along the
    first axis; unshuffled arrays and tensors are views). Outside a pool the result is all of the data.

    Args:
        data: The data.
        more: Further data of the same length, cut in the same way.
        shuffle: True permutes the items, by ``seed`` and ``epoch`` alone, so that every rank uses the same order.
        seed: The seed of the permutation.
        epoch: The epoch; another epoch gives another order.
        drop_last: True leaves out up to ``world_size - 1`` last items, so that every rank has equally many.

    Returns:
        The part of ``data``; with ``more``, a tuple of the parts.

    Raises:
        ValueError: The arguments have different lengths.
        TypeError: An argument has no order or no length.
    """
    takers = [_taker(each) for each in (data, *more)]
    lengths = [len(each) for each in (data, *more)]
    if len(set(lengths)) > 1:
        raise ValueError(f"shard() cuts its arguments alike, so they must be equally long, not {_listed(lengths)}")
    info = instance_info()
    picks = _picks(lengths[0], info.rank, info.world_size, _random(f"{seed}:{epoch}") if shuffle else None, drop_last)
    return tuple(take(picks) for take in takers) if more else takers[0](picks)


def _random(seed: str) -> Random:
    from random import Random  # imported here, as most tasks do not shuffle

    return Random(seed)  # noqa: S311


def _picks(count: int, rank: int, world_size: int, random: Random | None, drop_last: bool) -> Picks:
    stop = count - count % world_size if drop_last else count
    if random is None:
        return slice(min(rank, stop), stop, world_size)
    order = list(range(count))
    random.shuffle(order)
    return order[rank:stop:world_size]


def _taker(data: Any) -> Callable[[Picks], Any]:
    """Return a function that takes this rank's items from data of this type.

    Types of numpy, torch and pandas are tried only if the library is imported already.
    """
    if _is(data, "numpy", "ndarray") or _is(data, "torch", "Tensor"):
        if data.ndim == 0:
            raise TypeError("shard() cannot cut an array without an axis")
        return lambda picks: data[picks]
    if _is(data, "pandas", "DataFrame") or _is(data, "pandas", "Series"):
        return lambda picks: data.iloc[picks]
    if isinstance(data, Sequence) and not isinstance(data, str):
        return lambda picks: _from_sequence(data, picks)
    raise TypeError(_unfit(data))


def _is(data: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(data, kind)


def _from_sequence(data: Sequence[Any], picks: Picks) -> Any:
    """Take items by slicing if that keeps the type; otherwise make an object of the type from the items, or a list."""
    kind = type(data)
    if isinstance(picks, slice):
        try:
            part = data[picks]
        except TypeError:  # a deque and other types accept only integers as an index
            pass
        else:
            if type(part) is kind:
                return part
    items = [data[index] for index in (range(len(data))[picks] if isinstance(picks, slice) else picks)]
    # array.array: its constructor needs the type of the items, so start with an empty array
    empty = data[:0] if hasattr(data, "typecode") else None
    if empty is not None:
        empty.extend(items)  # type: ignore[attr-defined]
        return empty
    try:
        return kind(items)  # type: ignore[call-arg]
    except Exception:  # noqa: BLE001  for example range, whose constructor takes no items
        return items


def _unfit(data: Any) -> str:
    kind = type(data).__name__
    if isinstance(data, str | dict | set | frozenset):
        return f"shard() takes data with an order and items, not {kind}: give it a list"
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return f"shard() cannot cut a {kind}: cut its indexes, shard(range(len(data))), and select those"
    return f"shard() cannot cut a {kind}: it takes a sequence, numpy array, torch tensor, or pandas frame or series"


def _listed(lengths: list[int]) -> str:
    return f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"


def sharing(info: InstanceInfo) -> int:
    """Return the number of ranks that may run on this host at the same time."""
    return max(sum(peer.hostname == info.hostname for peer in info.peers), info.local_world_size)


def fill_cores(info: InstanceInfo) -> bool:
    """Return whether the ranks on this host occupy all of its cores. False for a task that is not a rank."""
    return info.world_size > 1 and sharing(info) >= len(os.sched_getaffinity(0))


@contextmanager
def without_preemption() -> Iterator[None]:
    """Run this process under SCHED_BATCH in the block: a thread that wakes up does not preempt a running thread.

    Ranks that share cores wait for each other. If a rank is preempted by ranks that it has just woken, all of them have
    to wait for it. Threads that start within the block inherit the policy. At the end of the block all threads return
    to SCHED_OTHER, which needs no privilege. A policy that the user has chosen (`chrt`) stays.
    """
    is_ours = _switch(os.SCHED_OTHER, os.SCHED_BATCH)
    try:
        yield
    finally:
        if is_ours:
            _switch(os.SCHED_BATCH, os.SCHED_OTHER)


def _switch(before: int, after: int) -> bool:
    """Change the scheduling policy from ``before`` to ``after`` in all threads of this process that have it.

    Return False, and change nothing, if the current thread has another policy.
    """
    try:
        if os.sched_getscheduler(0) != before:
            return False
        os.sched_setscheduler(0, after, os.sched_param(0))
        threads = os.listdir("/proc/self/task")  # noqa: PTH208 - numbers, not paths
    except OSError:  # sandboxes (gVisor, seccomp) support only one scheduling policy
        return False
    for thread in map(int, threads):
        with suppress(OSError):  # the thread has ended in the meantime
            if os.sched_getscheduler(thread) == before:
                os.sched_setscheduler(thread, after, os.sched_param(0))
    return True
