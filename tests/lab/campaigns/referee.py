"""What a life may not show, decided from its facts alone.

CHAOS-1: a client that nobody kills ends within its time.
CHAOS-2: it ends whole, or with an `OutriderError` that fits what befell it: no error of a library, no group of errors.
CHAOS-3: what a broadcast returns is right.
CHAOS-4: a client that has all of its results is told of nothing but of a clean-up that failed.
CHAOS-5: no launch token gives more machines than were asked for with it.
CHAOS-6: a client never has more machines at once than it wants, and the surplus that is documented for what befell it.
CHAOS-7: a machine ends before a client that ends whole; else with its lease and the minute after it.
CHAOS-8: an error after which machines run on names those that the client had used.
CHAOS-9: strangers' things stay, and so do the pools of clients that live.
CHAOS-10: `outrider gc --apply` afterwards exits with 0, and nothing of ours is left.
CHAOS-11: nothing is written on standard error that is not for users: no traceback, no error nobody retrieved.
CHAOS-12: a pool is ready on machines that can end themselves.
CHAOS-13: what runs goes on while EC2 is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SHUTDOWN_S = 60.0  # what the guarantee allows beyond the lease
CLOCK_S = 0.5  # between two clocks' readings of one moment, on a machine that is busy
CLEANUP = "CleanupError"
TEXT = 400  # characters of an error's that are shown
FATE = ("Traceback (most recent call last)", "never retrieved", "Exception ignored", "was destroyed but it is pending")


@dataclass(frozen=True, slots=True)
class Machine:
    """From its launch to its end, in seconds since 1970; None: it runs still."""

    id: str
    token: str
    launched: float
    terminated: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A client that has ended. ``fits``: errors that it may end with; ``surplus``: machines above those it wants.

    ``words``: what it said; ``errors``: its standard error; ``status``: None if it was killed because it did not end.
    ``unleased``: machines that nothing on them can end, by what was done to them.
    """

    name: str
    nodes: int
    rounds: int
    lease_s: float
    status: int | None
    ended_at: float
    killed: bool = False
    words: Sequence[Mapping[str, Any]] = ()
    errors: str = ""
    machines: Sequence[Machine] = ()
    fits: frozenset[str] = frozenset()
    whole: bool = True
    surplus: int = 0
    unleased: frozenset[str] = frozenset()

    def said(self, what: str) -> list[Mapping[str, Any]]:
        return [word for word in self.words if word["what"] == what]

    @property
    def raised(self) -> Mapping[str, Any] | None:
        return next(iter(self.said("raised")), None)

    @property
    def outcome(self) -> str:
        """For people: "whole", "killed", or the error's type."""
        if self.killed:
            return "killed"
        if self.raised is not None:
            return str(self.raised["type"])
        return "whole" if self.status == 0 else f"exit {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A life. ``asked``: how many machines each launch token asked for. ``left``: of ours, after the last gc."""

    clients: Sequence[Ended]
    asked: Mapping[str, int] = field(default_factory=dict)
    found: Sequence[str] = ()  # what the play itself has seen
    gc_status: int = 0
    gc_text: str = ""
    left: Sequence[str] = ()


def judge(facts: Facts) -> list[str]:
    """What the life has broken, in words that begin with the rule; empty: nothing."""
    found = [each for client in facts.clients for each in _client(client)]
    made = Counter(machine.token for client in facts.clients for machine in client.machines)
    found += [
        f"CHAOS-5: {count} machines of token {token}, which asked for {facts.asked.get(token, 0)}"
        for token, count in made.items()
        if count > facts.asked.get(token, 0)
    ]
    found += facts.found
    if facts.gc_status != 0:
        found.append(f"CHAOS-10: gc exits with {facts.gc_status}: {facts.gc_text}")
    found += [f"CHAOS-10: left: {each}; gc said: {facts.gc_text}" for each in facts.left]
    return found


def _client(client: Ended) -> list[str]:
    found = [*_end(client), *_machines(client)]
    wrong = [word for word in client.said("round") if not word["right"]]
    found += [f"CHAOS-3: round {word['number']} returned {word['results']}" for word in wrong]
    found += [
        f"CHAOS-11: {client.name} wrote {mark!r}:\n{client.errors[-3000:]}" for mark in FATE if mark in client.errors
    ]
    return [each if client.name in each else f"{each} ({client.name})" for each in found]


def _end(client: Ended) -> list[str]:
    if client.status is None:
        return [f"CHAOS-1: {client.name} did not end:\n{client.errors[-6000:]}"]
    if client.killed:
        return []
    error = client.raised
    if error is None:
        if client.status != 0 or len(client.said("round")) < client.rounds:
            return [f"CHAOS-2: exit {client.status} after {[word['what'] for word in client.words]} {client.errors}"]
        return [] if client.whole else ["CHAOS-2: it ended whole, and should have been told"]
    shown = _shown(error)
    found: list[str] = []
    if not error["typed"] or not client.fits & {*error["kinds"]}:
        found.append(f"CHAOS-2: {shown}")
    if len(client.said("round")) == client.rounds and client.said("done") and CLEANUP not in error["kinds"]:
        found.append(f"CHAOS-4: it had all of its results, and was told {shown}")
    text = " ".join([error["text"], *error["notes"]])
    ready_at = max((word["at"] for word in client.said("ready")), default=0.0)
    for machine in client.machines:
        ran = machine.terminated is None or machine.terminated > client.ended_at + CLOCK_S
        if ran and machine.launched <= ready_at and machine.id not in text:
            found.append(f"CHAOS-8: {machine.id} still ran, and the client was told {shown}")
    return found


def _shown(error: Mapping[str, Any]) -> str:
    """An error as its client was told it, in a line; what is longer stands in the client's own words."""
    more = {name: error[name] for name in ("notes", "cause") if error[name]}
    inside = [_shown(each) for each in error["inside"]]
    return f"{error['type']}: {error['text'][:TEXT]} {str(more)[:TEXT] if more else ''}{inside or ''}".strip()


def _machines(client: Ended) -> list[str]:
    found: list[str] = []
    if (most := _at_once(client.machines)) > client.nodes + client.surplus:
        found.append(f"CHAOS-6: {most} machines at once, where {client.nodes} are wanted, and {client.surplus} more")
    whole = client.status == 0 and not client.killed
    last = client.ended_at + (0.0 if whole else client.lease_s + SHUTDOWN_S)
    for machine in client.machines:
        end = float("inf") if machine.terminated is None else machine.terminated
        if machine.id not in client.unleased and end > last + CLOCK_S:
            story = f"launched {client.ended_at - machine.launched:.1f} s before the end of its client"
            found.append(f"CHAOS-7: {machine.id}, {story}, ended {end - client.ended_at:.1f} s after it")
    return found


def _at_once(machines: Sequence[Machine]) -> int:
    """An end comes before a beginning at the same moment."""
    changes = [(machine.launched, 1) for machine in machines]
    changes += [(machine.terminated, -1) for machine in machines if machine.terminated is not None]
    most = there = 0
    for _, change in sorted(changes):
        there += change
        most = max(most, there)
    return most
