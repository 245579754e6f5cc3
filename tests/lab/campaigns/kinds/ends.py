"""EC2 or the right to use it goes away for good or for a while: when the work is done, or in the middle of it."""

from __future__ import annotations

import time

from ..life import Kind, Life
from ..proxy import Call, CutBefore, Fault, Instead, refusal
from ..wish import Wish
from .answers import HTML

LEASE_S = 8.0
LIFETIME_S = 30.0  # from the opening, which takes a busy machine some of it
COST_USD = 0.0005  # of two of the cheapest machines, after some ten seconds


def away(life: Life, *, since: float, until: float = float("inf")) -> None:
    """EC2 does not answer between these moments, in a way that the dice choose."""
    faults: tuple[Fault, ...] = (CutBefore(), CutBefore(reset=True), Instead(500, HTML), Instead(503))
    fault = life.dice.choice(faults)
    life.suffers(lambda call: fault if since <= call.at < until else None)


def expired(life: Life) -> None:
    """the credentials expire in mid-run: tasks notice nothing, the exit says what is left"""
    client = life.client(Wish(lease_s=LEASE_S), fits=("AuthError", "CleanupError"), whole=False)
    if client.wait("ready", 90.0):
        life.passes(0.0, 2.0)
    life.suffers(lambda call: refusal("RequestExpired"))
    life.end(client)
    rounds = len(client.said("round"))
    life.expect(rounds == client.wish.rounds, f"CHAOS-13: {rounds} rounds ended when the credentials had expired")
    gc = life.site.gc("--apply")
    life.expect(gc.status != 0, f"CHAOS-10: gc exits with 0 while nobody can be asked: {gc.text}")


def exit_away(life: Life) -> None:
    """EC2 is away from the last broadcast on, for some seconds or for good"""
    client = life.client(Wish(rounds=1, round_s=2.0, lease_s=LEASE_S), fits=("CleanupError",), within_s=300.0)
    if client.wait("ready", 90.0):
        back_s = life.dice.choice((4.0, 10.0, 20.0, float("inf")))
        away(life, since=time.time(), until=time.time() + back_s)
    life.end(client)


def cost(life: Life) -> None:
    """max_cost is reached while every call is cut"""
    _limit(life, Wish(rounds=60, lease_s=LEASE_S, max_cost=COST_USD))


def lifetime(life: Life) -> None:
    """max_lifetime is reached while every call is cut"""
    _limit(life, Wish(rounds=60, lease_s=LEASE_S, max_lifetime_s=LIFETIME_S))


def calm_limit(life: Life) -> None:
    """max_lifetime is reached, and all is well"""
    life.end(life.client(Wish(rounds=60, max_lifetime_s=LIFETIME_S / 2), fits=("BudgetExceeded",), whole=False))


def begin_away(life: Life) -> None:
    """EC2 is away from some call of the launch on, for some seconds or for good"""
    first, lasts_s = life.dice.randint(1, 16), life.dice.choice((2.0, 6.0, float("inf")))
    since: list[float] = []

    def rule(call: Call) -> Fault | None:
        if call.serial >= first and not since:
            since.append(call.at)
        return CutBefore() if since and call.at < since[0] + lasts_s else None

    life.suffers(rule)
    life.end(life.client(Wish(lease_s=LEASE_S), fits=("CapacityError", "CleanupError"), within_s=400.0))


def _limit(life: Life, wish: Wish) -> None:
    client = life.client(wish, fits=("BudgetExceeded",), whole=False, within_s=300.0)
    if client.wait("ready", 90.0):
        away(life, since=time.time())
    life.end(client)


KINDS = (
    Kind("expired", expired),
    Kind("exit-away", exit_away),
    Kind("begin-away", begin_away),
    Kind("cost", cost),
    Kind("lifetime", lifetime),
    Kind("calm-limit", calm_limit),
)
