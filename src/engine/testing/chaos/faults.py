"""What may befall the nodes of a local pool: a frozen type each. Seconds are how long it lasts.

``rank``: whose node, None for any. ``at_step``: when a task of that rank has made so many steps (see `steps`), once;
None: at a time that the plan draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ...api import settings
from ...api.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Base of all."""

    kind: ClassVar[str] = ""
    takes: ClassVar[str] = "node"  # what is gone afterwards: "node", "task" or (nothing need be) ""

    rank: int | None = None
    at_step: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.rank is not None:
            settings.count(f"{name}(rank=...)", self.rank, least=0)
        if self.at_step is not None:
            settings.count(f"{name}(at_step=...)", self.at_step)
        for each in fields(self):
            if each.name not in {"rank", "at_step"}:
                settings.seconds(f"{name}: {each.name}", getattr(self, each.name))

    def __str__(self) -> str:
        """As a user would write it, less what it is by default."""
        given = [(each, getattr(self, each.name)) for each in fields(self)]
        return f"{type(self).__name__}({', '.join(f'{f.name}={v!r}' for f, v in given if v != f.default)})"

    def options(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """The machine is gone from one moment to the next."""

    kind: ClassVar[str] = "kill"


@dataclass(frozen=True, slots=True)
class Preempt(Fault):
    """The machine learns that it will be taken in ``notice`` seconds, and then it is."""

    kind: ClassVar[str] = "preempt"

    notice: float = 5.0


@dataclass(frozen=True, slots=True)
class KillDaemon(Fault):
    """The executor dies, and nothing else of the machine does: it is lost all the same."""

    kind: ClassVar[str] = "daemon"


@dataclass(frozen=True, slots=True)
class Freeze(Fault):
    """Every process of the machine stands still. Above 9 seconds or so that is a loss."""

    kind: ClassVar[str] = "freeze"

    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Partition(Fault):
    """Nothing passes between machine and client, and nobody tells either. Above 9 seconds or so that is a loss."""

    kind: ClassVar[str] = "partition"

    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """Everything between machine and client comes ``latency`` seconds later, ``kib_per_s`` at the most: no loss."""

    kind: ClassVar[str] = "slow"
    takes: ClassVar[str] = ""

    seconds: float = 20.0
    latency: float = 0.2
    kib_per_s: float = 256.0


@dataclass(frozen=True, slots=True)
class FullDisk(Fault):
    """No byte is left where tasks run, and then there is room again. For pools with ``Local(work_mib=...)``."""

    kind: ClassVar[str] = "disk"
    takes: ClassVar[str] = ""

    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class KillRank(Fault):
    """The processes of a node's tasks are killed, and the machine lives: each is `TaskKilled`, no loss of a node."""

    kind: ClassVar[str] = "rank"
    takes: ClassVar[str] = "task"


@dataclass(frozen=True, slots=True)
class HoldGil(Fault):
    """A task's process holds its interpreter lock, as a careless C extension does: no loss, however long."""

    kind: ClassVar[str] = "gil"
    takes: ClassVar[str] = ""

    seconds: float = 70.0


KINDS: dict[str, type[Fault]] = {
    each.kind: each for each in (Kill, Preempt, KillDaemon, Freeze, Partition, SlowLink, FullDisk, KillRank, HoldGil)
}
LOSSES = (Kill(), Preempt(), KillDaemon(), Freeze(), Partition())  # what a pool promises to survive, for any function


def checked(faults: object) -> tuple[Fault, ...]:
    """What users may write for ``faults=``: a list of faults, or of the names of those that need nothing said.

    Raises:
        SpecError
    """
    if isinstance(faults, str | Fault) or not isinstance(faults, Sequence) or not faults:
        raise SpecError(f'Chaos: faults takes a list that is not empty, as in ["kill", Freeze(15)], not {faults!r}.')
    found = []
    for fault in faults:
        if isinstance(fault, str) and fault in KINDS:
            found.append(KINDS[fault]())
        elif isinstance(fault, Fault):
            found.append(fault)
        else:
            written = f"write {fault.__name__}()" if isinstance(fault, type) else f"they are {', '.join(KINDS)}"
            raise SpecError(f"Chaos: {fault!r} is no fault: {written}.")
    return tuple(found)
