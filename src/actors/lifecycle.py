"""The life of a node: its states and the steps between them, as a table. Pure."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    LAUNCHED = "launched"  # its machine exists, its address is not known yet
    REACHING = "reaching"  # being connected to
    READY = "ready"
    STANDBY = "standby"  # ready, and starts to work when another node is lost
    NOTICED = "noticed"  # has a preemption notice: it finishes what it has and gets no new work
    DRAINING = "draining"  # no longer wanted: it finishes what it has
    SUSPECT = "suspect"  # ready, but its connection is lost and being tried again
    NOTICED_SUSPECT = "noticed suspect"
    DRAINING_SUSPECT = "draining suspect"
    STANDBY_SUSPECT = "standby suspect"
    DISMISSED = "dismissed"  # ended by us
    FAILED = "failed"  # never became ready
    LOST = "lost"


class Fact(Enum):
    REACHABLE = auto()  # the provider says where it is
    GREETED = auto()  # connected, its executor has answered
    SPARED = auto()  # enough nodes work without it
    PROMOTED = auto()  # a standby node is to work from now on
    NOTICED = auto()
    WITHDRAWN = auto()
    DROPPED = auto()  # the connection is lost
    RESUMED = auto()
    UNWANTED = auto()  # the pool has one node too many
    FINISHED = auto()  # empty, and draining or replaced
    UNREACHED = auto()  # the wait for its address, its connection or its resumption was given up
    GONE = auto()  # the provider says that the machine no longer exists


_BOOTING = {State.LAUNCHED, State.REACHING}
_CONNECTED = {
    State.READY: State.SUSPECT,
    State.STANDBY: State.STANDBY_SUSPECT,
    State.NOTICED: State.NOTICED_SUSPECT,
    State.DRAINING: State.DRAINING_SUSPECT,
}

TABLE: dict[tuple[State, Fact], State] = {
    (State.LAUNCHED, Fact.REACHABLE): State.REACHING,
    (State.REACHING, Fact.GREETED): State.READY,
    (State.READY, Fact.SPARED): State.STANDBY,
    (State.SUSPECT, Fact.SPARED): State.STANDBY_SUSPECT,
    (State.STANDBY, Fact.PROMOTED): State.READY,
    (State.STANDBY, Fact.NOTICED): State.NOTICED,
    (State.STANDBY_SUSPECT, Fact.NOTICED): State.NOTICED_SUSPECT,
    (State.STANDBY, Fact.UNWANTED): State.DRAINING,
    (State.STANDBY_SUSPECT, Fact.UNWANTED): State.DRAINING_SUSPECT,
    (State.READY, Fact.NOTICED): State.NOTICED,
    (State.NOTICED, Fact.WITHDRAWN): State.READY,
    (State.SUSPECT, Fact.NOTICED): State.NOTICED_SUSPECT,
    (State.NOTICED_SUSPECT, Fact.WITHDRAWN): State.SUSPECT,
    (State.READY, Fact.UNWANTED): State.DRAINING,
    (State.SUSPECT, Fact.UNWANTED): State.DRAINING_SUSPECT,
    (State.DRAINING, Fact.FINISHED): State.DISMISSED,
    (State.DRAINING_SUSPECT, Fact.FINISHED): State.DISMISSED,
    (State.NOTICED, Fact.FINISHED): State.DISMISSED,
    (State.NOTICED_SUSPECT, Fact.FINISHED): State.DISMISSED,
    **{(state, Fact.UNWANTED): State.DISMISSED for state in _BOOTING},
    **{(state, Fact.NOTICED): State.DISMISSED for state in _BOOTING},
    **{(state, fact): State.FAILED for state in _BOOTING for fact in (Fact.UNREACHED, Fact.GONE)},
    **{(state, Fact.DROPPED): suspect for state, suspect in _CONNECTED.items()},
    **{(suspect, Fact.RESUMED): state for state, suspect in _CONNECTED.items()},
    **{(suspect, Fact.UNREACHED): State.LOST for suspect in _CONNECTED.values()},
    **{(state, Fact.GONE): State.LOST for both in _CONNECTED.items() for state in both},
}
START = State.LAUNCHED
ENDS = frozenset({State.DISMISSED, State.FAILED, State.LOST})
SUSPECTS = frozenset(_CONNECTED.values())


class ImpossibleStep(Exception):
    """The table has no such step. This is a defect in Outrider; the message contains the node's last states."""


class Lifecycle:
    """One node's way through the table.

    LIFECYCLE-1: an end is final.
    LIFECYCLE-2: every state but an end leads to one.
    LIFECYCLE-3: a node takes only steps of the table.
    """

    __slots__ = ("state", "story")

    def __init__(self) -> None:
        self.state = START
        self.story: list[str] = [START.value]

    def step(self, fact: Fact) -> State:
        """Go to the state that follows upon ``fact`` and return it.

        Raises:
            ImpossibleStep: no state follows.
        """
        after = TABLE.get((self.state, fact))
        if after is None:
            raise ImpossibleStep(f"{fact.name} in {self.state.value}; before: {' > '.join(self.story)}")
        self.state = after
        self.story = [*self.story[-15:], after.value]
        return after

    def can(self, fact: Fact) -> bool:
        return (self.state, fact) in TABLE
