"""One life: its kind's play on nodes of its own, what comes after every play, and the referee's verdict."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import lives.life
from lives import turns
from lives.clients import Late, until
from lives.records import stragglers
from lives.verdict import Verdict

from . import ground, site
from .referee import LEAVING_S, SHUTDOWN_S, Ended, Facts, judge
from .wish import Wish

if TYPE_CHECKING:
    from .queue import Job
    from .site import Client, Site

READY_S = 120.0
SETTLED_S = 5.0  # in which what has been ended is gone from the process tables


@dataclass(frozen=True, slots=True)
class Kind:
    """What befalls lives. ``alone``: the whole cluster."""

    name: str
    play: Callable[[Life], None]
    alone: bool = False

    @property
    def tells(self) -> str:
        """The play's own line."""
        return (self.play.__doc__ or "").partition("\n")[0]


@dataclass(frozen=True, slots=True)
class _Expected:
    fits: frozenset[str]
    whole: bool
    surplus: int
    leaving_s: float | None
    completing: bool


@dataclass(slots=True, kw_only=True)
class Life(lives.life.Life):
    """What a kind's play works with."""

    site: Site
    name: str
    collects: bool = False  # whether a gc comes at once: the jobs of killed clients are not waited for
    strangers: set[str] = field(default_factory=set)  # jobs
    measured: list[tuple[str, float]] = field(default_factory=list)
    _expected: dict[str, _Expected] = field(default_factory=dict)

    def client(
        self,
        *,
        fits: Sequence[str] = (),
        whole: bool = True,
        surplus: int = 0,
        within_s: float = 120.0,
        leaving_s: float | None = LEAVING_S,
        completing: bool = False,
        **wish: Any,
    ) -> Client:
        """Start one. ``fits``: errors that it may end with; ``whole``: it may also end without any.

        ``surplus``: nodes that it asks for beside those it wants. ``within_s``: of its end, from when it is asked for.
        ``completing``: see `referee.Ended`.
        """
        client = self.site.start(Wish(name=f"{self.name}-{len(self.site.clients)}", **wish))
        self.within_s[client.key] = within_s
        self._expected[client.key] = _Expected(frozenset(fits), whole, surplus, leaving_s, completing)
        return client

    def ready(self, client: Client) -> None:
        """
        Raises:
            Late: it is not.
        """
        if not client.wait("ready", READY_S):
            raise Late(f"{client.wish.name} has ended before it was ready: {client.words[-2:]}")

    def job(self, client: Client) -> Job:
        """The first one that lives."""
        until(lambda: self.site.living(client), READY_S, "it has a job")
        return self.site.living(client)[0]

    def mended(self, client: Client, since: float, within_s: float) -> float:
        """How long after ``since`` work went on: until a round began that ended.

        Raises:
            Late: none did.
        """

        def later() -> list[float]:
            return [word["at"] for word in client.said("round") if word["began"] >= since]

        until(lambda: later() or client.ended_at, within_s, "a round begins and ends after the loss")
        if not later():
            raise Late(f"it has ended without a round after the loss: {client.words[-2:]}")
        return max(0.0, later()[0] - client.wish.round_s - since)

    def stranger(self, *, pool: str) -> None:
        """A job of somebody else, with a label like ours."""
        comment = f"--comment=outrider:{pool}:bob@elsewhere:{self.dice.getrandbits(64):016x}"
        self.strangers.add(self.site.share.submit(comment, "--hold"))

    # --- after the play -----------------------------------------------------------------------------------------------

    def over(self) -> Facts:
        """All clients end, their jobs end, and a gc removes what is left."""
        for client in self.site.clients:
            client.go()  # a play that came to an early end has left it waiting
            self.end(client)
        if not self.collects:
            self.jobs_end()
        before = [self._ended(client) for client in self.site.clients]
        gc = self.site.gc("--apply")
        jobs = [job for client in self.site.clients for job in self.site.jobs(client)]
        left = self._left(jobs)
        there = {job.id for job in self.site.share.jobs() if job.ended is None}
        self.found += [f"SLURM-5: job {each} of a stranger is gone" for each in sorted(self.strangers - there)]
        return Facts(
            clients=[self._ended(client) for client in self.site.clients] if self.collects else before,
            found=tuple(self.found),
            gc_status=gc.status,
            gc_text=gc.text,
            left=left,
        )

    def jobs_end(self) -> None:
        """Wait until those of the clients that were killed are over, or should be."""
        for client in self.site.clients:
            if client.killed and client.ended_at:
                started = [job.started or 0.0 for job in self.site.jobs(client)]
                last = max([client.ended_at, *started]) + client.wish.lease_s + SHUTDOWN_S
                try:
                    until(partial(self._is_over, client), max(0.0, last - time.time()) + 5.0, "its jobs are over")
                except Late:
                    pass  # the referee sees it

    def _is_over(self, client: Client) -> bool:
        return not self.site.living(client)

    def _left(self, jobs: list[Job]) -> list[str]:
        """What is left when all had some time to go."""

        def left() -> list[str]:
            completing = any(each.completing for each in self._expected.values())
            return self.site.left({job.id for job in jobs}, {job.token for job in jobs}, completing=completing)

        try:
            until(lambda: not left(), SETTLED_S, "nothing is left")
        except Late:
            return left()
        return []

    def _ended(self, client: Client) -> Ended:
        expected, wish = self._expected[client.key], client.wish
        return Ended(
            name=wish.name,
            nodes=wish.nodes,
            rounds=wish.rounds,
            lease_s=wish.lease_s,
            status=None if client.key in self.hung else client.process.returncode,
            ended_at=client.ended_at,
            killed=client.killed,
            words=tuple(client.words),
            errors=client.errors(),
            jobs=self.site.jobs(client),
            fits=expected.fits,
            whole=expected.whole,
            surplus=expected.surplus + stragglers(self.site.state, wish.nodes),
            leaving_s=expected.leaving_s,
            completing=expected.completing,
        )


def live(on: ground.Ground, kind: Kind, seed: int) -> Verdict:
    """Play a life of that kind, drawn from the seed."""
    story = f"{kind.name} {seed}"
    with on.share(alone=kind.alone) as share, site.opened(share) as made:
        began = time.monotonic()
        life = Life(site=made, dice=random.Random(story), name=f"{kind.name}-{seed}")
        try:
            kind.play(life)
        except Late as error:
            life.found.append(f"CHAOS-1: {error}")
        facts = life.over()
        broken, took_s = judge(facts), time.monotonic() - began
    outcomes = [each.outcome for each in facts.clients]
    leaving = [("leaving", each.left_in_s) for each in facts.clients if each.left_in_s is not None]
    return Verdict(kind.name, seed, outcomes, broken, took_s, measured=[*life.measured, *leaving])


def played(lives: Sequence[turns.Life], jobs: int) -> Iterator[Verdict]:
    """As they end, ``jobs`` of them at a time, on one cluster."""
    with ground.opened(min(jobs, len(lives))) as on:
        yield from turns.played(lives, partial(_played, on), jobs=jobs)


def _played(on: ground.Ground, kind: str, seed: int) -> Verdict:
    from .kinds import KINDS

    try:
        return live(on, KINDS[kind], seed)
    except Exception:  # noqa: BLE001 - the campaign goes on, and shows it
        return Verdict(kind, seed, (), [f"the life itself failed:\n{traceback.format_exc()[-6000:]}"], 0.0)
