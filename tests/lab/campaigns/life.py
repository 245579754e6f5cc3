"""One life: its kind's play on a site of its own, what comes after every play, and the referee's verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lives.life
from lives.clients import Late, until
from lives.records import stragglers
from lives.verdict import Verdict

from . import site
from .proxy import Rule
from .referee import SHUTDOWN_S, Ended, Facts, Machine, judge
from .site import Client, Site
from .wish import Wish


@dataclass(frozen=True, slots=True)
class Kind:
    """What befalls lives. ``behaviour``: of the cloud."""

    name: str
    play: Callable[[Life], None]
    behaviour: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tells(self) -> str:
        """The play's own line."""
        return (self.play.__doc__ or "").partition("\n")[0]


@dataclass(frozen=True, slots=True)
class _Expected:
    fits: frozenset[str]
    whole: bool
    surplus: int


@dataclass(slots=True, kw_only=True)
class Life(lives.life.Life):
    """What a kind's play works with."""

    site: Site
    strangers: set[str] = field(default_factory=set)  # ids
    collects: bool = False  # whether a gc comes at once: the machines are not waited for
    gc: tuple[str, ...] = ("--apply",)  # the options of the last one
    gc_before: tuple[str, ...] = ()  # and a command that runs it
    _expected: dict[str, _Expected] = field(default_factory=dict)

    def client(
        self,
        wish: Wish,
        *,
        fits: Sequence[str] = (),
        whole: bool = True,
        surplus: int = 0,
        within_s: float = 200.0,
        before: Sequence[str] = (),
    ) -> Client:
        """Start one. ``fits``: errors that it may end with; ``whole``: it may also end without any.

        ``surplus``: machines at once above those that it wants. ``within_s``: of its end, from when it is asked for.
        """
        client = self.site.start(wish, before=before)
        self.within_s[client.key] = within_s
        self._expected[client.key] = _Expected(frozenset(fits), whole, surplus)
        return client

    def suffers(self, *rules: Rule) -> None:
        """The proxy's rules from now on; none: it is well."""
        self.site.proxy.rules = rules

    def machines_end(self) -> None:
        """Wait until those of the clients that have ended are gone, or should be."""
        for client in self.site.clients:
            if client.ended_at:
                self._machines_end(client)

    # --- after the play -----------------------------------------------------------------------------------------------

    def over(self) -> Facts:
        """All clients end, all trouble ends, the machines end, and a gc removes what is left."""
        for client in self.site.clients:
            client.go()  # a play that came to an early end has left it waiting
            self.end(client)
        self.suffers()
        self.site.cloud.faults.clear()
        if not self.collects:
            self.machines_end()
        clients = [self._ended(client) for client in self.site.clients]
        gc = self.site.gc(*self.gc, before=self.gc_before)
        there = {each.id for each in self.site.cloud.left()}
        self.found += [f"CHAOS-9: {each} of a stranger is gone" for each in sorted(self.strangers - there)]
        return Facts(
            clients=[each for each in clients if each is not None],
            asked={token: count for token, (_, count) in self.site.proxy.asked_for.items()},
            found=tuple(self.found),
            gc_status=gc.status,
            gc_text=gc.text,
            left=[f"{each.kind} {each.id}" for each in self.site.cloud.left() if each.id not in self.strangers],
        )

    def _machines_end(self, client: Client) -> None:
        last = client.ended_at + client.wish.lease_s + SHUTDOWN_S

        def gone() -> bool:
            return {each.id for each in self.site.running(client)} <= self.site.hypervisor.unleased

        try:
            until(gone, max(0.0, last - time.time()) + 5.0, "its machines have ended")
        except Late:
            pass  # the referee sees it

    def _ended(self, client: Client) -> Ended:
        expected, wish = self._expected[client.key], client.wish
        bills = {bill.id: bill for bill in self.site.cloud.ledger.bills}
        machines = [
            Machine(each.id, self.site.proxy.made[each.id], bills[each.id].launched, bills[each.id].terminated)
            for each in self.site.machines(client)
        ]
        helpless = {each.id for each in machines} if self.collects else self.site.hypervisor.unleased
        return Ended(
            name=f"{wish.name} ({client.key})",
            nodes=wish.nodes,
            rounds=wish.rounds,
            lease_s=wish.lease_s,
            status=None if client.key in self.hung else client.process.returncode,
            ended_at=client.ended_at,
            killed=client.killed,
            words=tuple(client.words),
            errors=client.errors(),
            machines=machines,
            fits=expected.fits,
            whole=expected.whole,
            surplus=expected.surplus + stragglers(self.site.state, wish.nodes),
            unleased=frozenset(helpless),
        )


def live(kind: Kind, seed: int) -> Verdict:
    """Play a life of that kind, drawn from the seed."""
    began, story = time.monotonic(), f"{kind.name} {seed}"
    with site.opened(story, kind.behaviour) as made:
        life = Life(site=made, dice=random.Random(story))
        try:
            kind.play(life)
            broken: list[str] = []
        except Late as error:
            broken = [f"CHAOS-1: {error}"]
        facts = life.over()
        hits = dict(made.proxy.hits)
    broken += judge(facts)
    return Verdict(kind.name, seed, [each.outcome for each in facts.clients], broken, time.monotonic() - began, hits)
