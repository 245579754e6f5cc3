"""The faults of simulated runs, one frozen type each: a list of them can be written down and shortened.

Each happens ``at_s``: of the run, or after the nth event of a name (``after=("generation_lost", 1)``), which hits
windows of milliseconds that random times would miss. ``who`` is a share of the machines that are there then, in the
order of their births (0.0 the oldest), or "head", the rank 0 of the latest generation, or "newest".
"""

from __future__ import annotations

from typing import Literal

from ....lazy_dataclass import dataclass

Who = float | Literal["head", "newest"]
Way = Literal["both", "out", "in"]  # to the node, to the client
Bad = Literal["dark", "deaf", "refuses", "fatal"]
SILENT: tuple[Bad, ...] = ("dark", "deaf", "refuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    at_s: float
    after: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(_Fault):
    """A notice that the cloud will take a machine in ``seconds``: from the node, the provider, or both."""

    who: Who
    seconds: float = 120.0
    by: Literal["node", "cloud", "both"] = "node"
    then: Literal["dies", "withdrawn", "nothing"] = "dies"
    after_s: float = 120.0  # until the fault of ``then`` happens


@dataclass(frozen=True, slots=True, kw_only=True)
class Death(_Fault):
    """A machine ends. ``silent``: nobody closes its connections. ``reported_s``: the provider's delay; None: never."""

    who: Who
    silent: bool = False
    reported_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(_Fault):
    """A share of all machines ends at once."""

    share: float
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm(_Fault):
    """The cloud takes a share of the machines, one after the other ``within_s``: ``noticed`` of them with a notice of
    ``seconds`` (or of as much as is left), the others without a word.
    """

    share: float
    within_s: float = 60.0
    seconds: float = 30.0
    noticed: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(_Fault):
    """A connection is closed; both ends live."""

    who: Who


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonDeath(_Fault):
    """The executor on a node dies with its workers, the machine does not; ``restarts``: another executor starts."""

    who: Who
    restarts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath(_Fault):
    """A process that runs a task is killed from outside."""

    who: Who


@dataclass(frozen=True, slots=True, kw_only=True)
class Barren(_Fault):
    """No worker can be born on a machine for a while, and one of those there dies, so that another is needed."""

    who: Who
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(_Fault):
    """No data crosses between the client and one node, in one direction or both; it arrives afterwards."""

    who: Who
    for_s: float
    way: Way = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(_Fault):
    """A machine stops for a while, and goes on."""

    who: Who
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(_Fault):
    """Everything takes ``by_s`` longer between the client and one node."""

    who: Who
    for_s: float
    by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCut(_Fault):
    """The client's own network is gone: no node, and no provider, can be reached."""

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drought(_Fault):
    """The cloud has no further machines."""

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchErrors(_Fault):
    """The next launch calls fail; ``retry_after_s`` None: the provider reports that a retry is of no use."""

    calls: int
    retry_after_s: float | None = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAnswers(_Fault):
    """The next launch calls create their machines, but their answers never reach the client."""

    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMachines(_Fault):
    """The next machines never boot, or boot and do not answer (``deaf``), or refuse all (for good if ``fatal``)."""

    machines: int
    how: Bad = "refuses"


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateErrors(_Fault):
    """The provider's terminate call fails for a while."""

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchError(_Fault):
    """The provider's stream of events breaks once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo(_Fault):
    """Reports of the past reach the pool a second time, as if they were new."""

    reports: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery(_Fault):
    """A node reports that attempts of other nodes have returned, were killed, or are given back by it."""

    who: Who
    attempts: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(_Fault):
    """The user wants another number of nodes."""

    wanted: int


Fault = (
    Notice
    | Death
    | Outage
    | Storm
    | Reset
    | DaemonDeath
    | WorkerDeath
    | Barren
    | Partition
    | Freeze
    | Slow
    | ClientCut
    | Drought
    | LaunchErrors
    | LostAnswers
    | BadMachines
    | TerminateErrors
    | WatchError
    | Echo
    | Forgery
    | Resize
)
