"""What a life may not show, decided from its facts alone.

CHAOS-1 to CHAOS-4, and CHAOS-11: see `lives.ends`.
CHAOS-5: no launch token gives more machines than were asked for with it.
CHAOS-6: a client never has more machines at once than it wants, and the surplus that is documented for what befell it.
CHAOS-7: a machine ends before a client that ends whole; else with its lease and the minute after it.
CHAOS-8: an error after which machines run on names those that the client had used.
CHAOS-9: strangers' things stay, and so do the pools of clients that live.
CHAOS-10: `outrider gc --apply` afterwards exits with 0, and nothing of ours is left.
CHAOS-12: a pool is ready on machines that can end themselves.
CHAOS-13: what runs goes on while EC2 is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lives import ends

SHUTDOWN_S = 60.0  # what the guarantee allows beyond the lease
CLOCK_S = 0.5  # between two clocks' readings of one moment, on a machine that is busy


@dataclass(frozen=True, slots=True)
class Machine:
    """From its launch to its end, in seconds since 1970; None: it runs still."""

    id: str
    token: str
    launched: float
    terminated: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(ends.Ended):
    """A client that has ended. ``surplus``: machines above those it wants, ``nodes``.

    ``unleased``: machines that nothing on them can end, by what was done to them.
    """

    nodes: int
    lease_s: float
    machines: Sequence[Machine] = ()
    surplus: int = 0
    unleased: frozenset[str] = frozenset()


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
    found = [*ends.judged(client), *_unnamed(client), *_machines(client)]
    return [each if client.name in each else f"{each} ({client.name})" for each in found]


def _unnamed(client: Ended) -> list[str]:
    """The machines that run on, of which its error says nothing."""
    error = client.raised
    if error is None or client.killed or client.status is None:
        return []
    text = " ".join([error["text"], *error["notes"]])
    ready_at = max((word["at"] for word in client.said("ready")), default=0.0)
    found: list[str] = []
    for machine in client.machines:
        ran = machine.terminated is None or machine.terminated > client.ended_at + CLOCK_S
        if ran and machine.launched <= ready_at and machine.id not in text:
            found.append(f"CHAOS-8: {machine.id} still ran, and the client was told {ends.shown(error)}")
    return found


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
