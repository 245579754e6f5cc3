"""The faults that can be injected into local nodes, one frozen type each. ``seconds`` is the duration of a fault.

``rank`` is the rank of the target node; None: any node. ``at_step=20``: inject the fault once, when the task of that
rank reaches step 20 (see `outrider.testing.step`). ``at_step=None``: inject at random times, which the plan draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

from ...engine.api import checks
from ...engine.api.errors import SpecError
from ...lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The base of all faults.

    Args:
        rank: The rank of the target. None: the rank of the plan, or any.
        at_step: The step of the target's task at which the fault is injected. None: at a time that the plan draws.
    """

    kind: ClassVar[str] = ""
    takes: ClassVar[str] = "node"  # what the pool loses by the fault: "node", "task" or "" (nothing)

    rank: int | None = None
    at_step: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.rank is not None:
            checks.count(f"{name}(rank=...)", self.rank, least=0)
        if self.at_step is not None:
            checks.count(f"{name}(at_step=...)", self.at_step)
        for each in fields(self):
            if each.name not in {"rank", "at_step"}:
                checks.seconds(f"{name}: {each.name}", getattr(self, each.name))

    def __str__(self) -> str:
        """The fault as a user would write it, without defaults."""
        values = [(each, getattr(self, each.name)) for each in fields(self)]
        return f"{type(self).__name__}({', '.join(f'{f.name}={v!r}' for f, v in values if v != f.default)})"

    def options(self) -> dict[str, Any]:
        """Return the options that are not None, with their values."""
        return {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """The node ends at once."""

    kind: ClassVar[str] = "kill"


@dataclass(frozen=True, slots=True)
class Preempt(Fault):
    """The node gets a preemption notice, and ends later.

    Args:
        notice: Seconds from the notice to the end.
    """

    kind: ClassVar[str] = "preempt"

    notice: float = 5.0


@dataclass(frozen=True, slots=True)
class KillDaemon(Fault):
    """Only the executor of the node dies; the node counts as lost all the same."""

    kind: ClassVar[str] = "daemon"


@dataclass(frozen=True, slots=True)
class Freeze(Fault):
    """Every process of the node is stopped. After about 9 seconds the node counts as lost.

    Args:
        seconds: The duration.
    """

    kind: ClassVar[str] = "freeze"

    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Partition(Fault):
    """No data passes between node and client, and no error is reported. After about 9 seconds the node counts as lost.

    Args:
        seconds: The duration.
    """

    kind: ClassVar[str] = "partition"

    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """The network between node and client is slow. Nothing is lost.

    Args:
        seconds: The duration.
        latency: The additional delay in seconds.
        kib_per_s: The maximum rate in KiB per second.
    """

    kind: ClassVar[str] = "slow"
    takes: ClassVar[str] = ""

    seconds: float = 20.0
    latency: float = 0.2
    kib_per_s: float = 256.0


@dataclass(frozen=True, slots=True)
class FullDisk(Fault):
    """The disk where tasks run is full for a while. For pools with ``Local(work_mib=...)``.

    Args:
        seconds: The duration.
    """

    kind: ClassVar[str] = "disk"
    takes: ClassVar[str] = ""

    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class KillRank(Fault):
    """The processes of a node's tasks are killed (error: `TaskKilled`); the node itself stays."""

    kind: ClassVar[str] = "rank"
    takes: ClassVar[str] = "task"


@dataclass(frozen=True, slots=True)
class HoldGil(Fault):
    """A task's process holds its interpreter lock, like a careless C extension. Nothing is lost, whatever the duration.

    Args:
        seconds: The duration.
    """

    kind: ClassVar[str] = "gil"
    takes: ClassVar[str] = ""

    seconds: float = 70.0


KINDS: dict[str, type[Fault]] = {
    each.kind: each for each in (Kill, Preempt, KillDaemon, Freeze, Partition, SlowLink, FullDisk, KillRank, HoldGil)
}
# faults that a pool survives, whatever function it runs
LOSSES = (Kill(), Preempt(), KillDaemon(), Freeze(), Partition())


def checked(faults: object) -> tuple[Fault, ...]:
    """Check a user's ``faults=``: a list of faults, or of names of faults that need no arguments.

    Raises:
        SpecError: it is not such a list, or is empty.
    """
    if isinstance(faults, str | Fault) or not isinstance(faults, Sequence) or not faults:
        raise SpecError(f'Chaos: faults takes a list that is not empty, as in ["kill", Freeze(15)], not {faults!r}.')
    result = []
    for fault in faults:
        if isinstance(fault, str) and fault in KINDS:
            result.append(KINDS[fault]())
        elif isinstance(fault, Fault):
            result.append(fault)
        else:
            written = f"write {fault.__name__}()" if isinstance(fault, type) else f"they are {', '.join(KINDS)}"
            raise SpecError(f"Chaos: {fault!r} is no fault: {written}.")
    return tuple(result)
