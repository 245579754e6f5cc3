"""The faults of simulated runs, one frozen dataclass each, so that a list of faults can be printed and shortened.

A fault happens at the time ``at_s`` of the run. With ``after=("generation_lost", 1)``, it happens ``at_s`` seconds
after the first event of that name: such faults hit windows of milliseconds that random times would miss. ``who``
selects a machine: "head" (the machine of rank 0 of the latest generation), "newest", or a number from 0 to 1, the
position among the machines in the order of their launches (0.0 is the oldest machine).
"""

from __future__ import annotations

from typing import Literal

from ...lazy_dataclass import dataclass

Who = float | Literal["head", "newest"]
Way = Literal["both", "out", "in"]  # direction of data: "out" to the node, "in" to the client
Bad = Literal["dark", "deaf", "refuses", "fatal"]
SILENT: tuple[Bad, ...] = ("dark", "deaf", "refuses")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """The base of all faults.

    Args:
        at_s: Seconds from the start of the run; with ``after``, seconds after that event.
        after: The event that triggers the fault: ``("generation_lost", 2)`` is the second event of that name.
    """

    at_s: float
    after: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(_Fault):
    """The cloud will take a machine, and gives notice.

    Args:
        who: The machine: ``"head"``, ``"newest"``, or a number from 0 to 1, the position among the existing machines in
            the order of their launches (0.0 is the oldest).
        seconds: Seconds from the notice to the announced end of the machine.
        by: The source of the notice: ``"node"``, ``"cloud"`` or ``"both"``.
        then: What follows: the machine ``"dies"``, the notice is ``"withdrawn"``, or ``"nothing"`` happens.
        after_s: Seconds until ``then`` happens.
    """

    who: Who
    seconds: float = 120.0
    by: Literal["node", "cloud", "both"] = "node"
    then: Literal["dies", "withdrawn", "nothing"] = "dies"
    after_s: float = 120.0  # seconds from the notice until ``then`` happens


@dataclass(frozen=True, slots=True, kw_only=True)
class Death(_Fault):
    """A machine ends.

    Args:
        who: The machine, as in `Notice`.
        silent: Whether its connections stay open.
        reported_s: Seconds until the provider reports the end. None: never.
    """

    who: Who
    silent: bool = False
    reported_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(_Fault):
    """A share of all machines ends at once.

    Args:
        share: The share, from 0 to 1.
        silent: Whether their connections stay open.
    """

    share: float
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm(_Fault):
    """The cloud takes away a share of the machines, one after the other.

    Args:
        share: The share of the machines, from 0 to 1.
        within_s: Seconds within which the cloud takes all these machines.
        seconds: Seconds from a machine's notice to its end; fewer if the machine ends sooner after the storm began.
        noticed: The share of these machines that get a notice, from 0 to 1.
    """

    share: float
    within_s: float = 60.0
    seconds: float = 30.0
    noticed: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(_Fault):
    """A connection is closed; the client and the node continue.

    Args:
        who: The machine, as in `Notice`.
    """

    who: Who


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonDeath(_Fault):
    """The executor on a node dies with its workers; the machine continues.

    Args:
        who: The machine, as in `Notice`.
        restarts: Whether a new executor is started in its place.
    """

    who: Who
    restarts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeath(_Fault):
    """A process that runs a task is killed from outside.

    Args:
        who: The machine, as in `Notice`.
    """

    who: Who


@dataclass(frozen=True, slots=True, kw_only=True)
class Barren(_Fault):
    """No worker can be started on a machine for a while.

    One of its workers is killed, so that the node needs a new worker.

    Args:
        who: The machine, as in `Notice`.
        for_s: The duration in seconds.
    """

    who: Who
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(_Fault):
    """No data passes between the client and one node. Data sent during this time arrives after the end of the fault.

    Args:
        who: The machine, as in `Notice`.
        for_s: The duration in seconds.
        way: ``"out"`` (to the node), ``"in"`` (to the client), or ``"both"``.
    """

    who: Who
    for_s: float
    way: Way = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(_Fault):
    """A machine stops for a while, and then continues.

    Args:
        who: The machine, as in `Notice`.
        for_s: The duration in seconds.
    """

    who: Who
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(_Fault):
    """All data between the client and one node is delayed.

    Args:
        who: The machine, as in `Notice`.
        for_s: The duration in seconds.
        by_s: The additional delay in seconds.
    """

    who: Who
    for_s: float
    by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCut(_Fault):
    """The client's own network fails: it can reach no node and no provider.

    Args:
        for_s: The duration in seconds.
    """

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drought(_Fault):
    """The cloud cannot launch any more machines.

    Args:
        for_s: The duration in seconds.
    """

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchErrors(_Fault):
    """The next launch calls fail.

    Args:
        calls: The number of calls.
        retry_after_s: Seconds after which the provider recommends another try. None: the provider reports that
            trying again is useless.
    """

    calls: int
    retry_after_s: float | None = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAnswers(_Fault):
    """The next launch calls create their machines, but their answers never reach the client.

    Args:
        calls: The number of calls.
    """

    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMachines(_Fault):
    """The next machines do not work.

    Args:
        machines: The number of machines.
        how: ``"dark"`` (never boots), ``"deaf"`` (answers nobody), ``"refuses"`` (refuses everything) or ``"fatal"``
            (refuses everything for good).
    """

    machines: int
    how: Bad = "refuses"


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateErrors(_Fault):
    """The provider's terminate call fails for a while.

    Args:
        for_s: The duration in seconds.
    """

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchError(_Fault):
    """The provider's stream of events breaks once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo(_Fault):
    """The last reports from nodes reach the pool a second time, as if they were new.

    Args:
        reports: The number of messages with reports.
    """

    reports: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery(_Fault):
    """A node sends false reports about attempts of other nodes: that they returned, were killed, or were given back.

    Args:
        who: The machine, as in `Notice`.
        attempts: The number of attempts.
    """

    who: Who
    attempts: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(_Fault):
    """The user resizes the pool.

    Args:
        wanted: The new number of nodes.
    """

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
