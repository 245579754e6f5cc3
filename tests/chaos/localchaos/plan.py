"""What one life is: a pool, what befalls it and how its client ends, all drawn from one number. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

LIMITS = (12, 40, 96, 256, 512)  # of descriptors
PARTS = ("watchdog", "supervisor", "forkserver", "executor", "server", "template", "worker")

KILLS = (*(f"kill-{part}" for part in PARTS), "kill-child", "kill-machine")
ORPHAN = "orphan-supervisor"  # stopped as soon as its watchdog has been killed: nobody wakes it then
STOPS = (*(f"stop-{part}" for part in PARTS), "stop-machine", "stop-client", ORPHAN)
SHORTAGES = (*(f"limit-{part}" for part in PARTS if part != "template"), "full-work", "full-checkpoints")
OTHERS = ("stall", "notice")
FAULTS = (*KILLS, *STOPS, *SHORTAGES, *OTHERS)

FINISH = "end-finish"  # the block is left
RAISE = "end-raise"  # by an error of the program's own
SIGNALS = {"end-kill": "KILL", "end-fork": "KILL", "end-term": "TERM", "end-hup": "HUP", "end-int": "INT"}
INTERRUPTS = "end-interrupts"  # three SIGINT within 60 ms
OPENING = "end-opening"  # SIGTERM while the pool is being opened
ENDINGS = (FINISH, RAISE, *SIGNALS, INTERRUPTS, OPENING)
CLIENT_LIMIT = "limit-client"  # from its beginning, and of all that it starts
DRAWN = (*FAULTS, *ENDINGS, CLIENT_LIMIT)

WEIGHTS = {f"{verb}-{part}": 2 for verb in ("kill", "stop") for part in ("watchdog", "supervisor")}  # others: 3
REPLACE_S, HANG_S = 30.0, 90.0


@dataclass(frozen=True)
class Strike:
    """One fault, ``at_s`` after the pool was ready. What can be undone is, after ``seconds``."""

    at_s: float
    fault: str
    seconds: float
    share: float  # whom of several it hits: 0.0 is the first
    number: int = 0  # of descriptors


@dataclass(frozen=True)
class Life:
    """``threads``: the form without async, from several threads. ``limit``: of the client's descriptors; 0: none."""

    seed: int
    nodes: int
    spare: int
    slots: int
    lanes: int
    seconds: float
    threads: bool
    strict: bool  # python -X dev
    template: bool
    shared_memory: bool
    as_remote: bool
    lease_s: float
    limit: int
    ending: str
    end_s: float
    strikes: tuple[Strike, ...]

    @property
    def faults(self) -> frozenset[str]:
        return frozenset([strike.fault for strike in self.strikes] + ([CLIENT_LIMIT] if self.limit else []))

    @property
    def pauses_s(self) -> float:
        return sum(strike.seconds for strike in self.strikes)

    @property
    def hang_s(self) -> float:
        """A call that takes longer than this hangs: generous, because other programs may have the processor."""
        return HANG_S + REPLACE_S + self.pauses_s

    def __str__(self) -> str:
        pool = f"{self.nodes} nodes, {self.spare} spare, {self.slots} slots"
        traits = [name for name in ("threads", "strict", "template") if getattr(self, name)]
        traits += ["as remote"] if self.as_remote else [] if self.shared_memory else ["without shared memory"]
        traits += [f"limit {self.limit}"] if self.limit else []
        struck = [f"{strike.fault} at {strike.at_s:.1f} s" for strike in self.strikes]
        return f"{pool}; {', '.join([*traits, *struck, self.ending])}"


def draw(seed: int, only: str | None = None) -> Life:
    """``only``: one of `DRAWN`, and no other fault; the ending is drawn as ever unless it is what is asked for."""
    dice = Random(f"life {seed}")
    threads = dice.random() < 0.15
    seconds = dice.uniform(8.0, 16.0)
    limit = dice.choice(LIMITS) if dice.random() < 0.1 else 0
    ending = dice.choice(ENDINGS) if dice.random() < 0.55 else FINISH
    strikes = _strikes(dice, seconds, only)
    if only is not None:
        limit = dice.choice(LIMITS) if only == CLIENT_LIMIT else 0
        ending = only if only in ENDINGS else ending
    return Life(
        seed=seed,
        nodes=dice.choice((2, 2, 3)),
        spare=dice.choice((0, 0, 1)),
        slots=dice.choice((1, 1, 2)),
        lanes=dice.choice((2, 3, 4)),
        seconds=seconds,
        threads=threads,
        strict=dice.random() < 0.3,
        template=any("template" in strike.fault for strike in strikes) or dice.random() < 0.2,
        shared_memory=dice.random() < 0.8,
        as_remote=any("server" in strike.fault.split("-") for strike in strikes) or dice.random() < 0.1,
        lease_s=dice.choice((12.0, 20.0, 120.0)),
        limit=limit,
        ending=ending,
        end_s=dice.uniform(0.3, 1.0) * seconds if ending != OPENING else dice.uniform(0.0, 1.5),
        strikes=strikes,
    )


def _strikes(dice: Random, seconds: float, only: str | None) -> tuple[Strike, ...]:
    names = FAULTS if only is None else (only,) if only in FAULTS else ()
    if not names:
        return ()
    weights = [WEIGHTS.get(name, 3) for name in names]
    count = dice.choice((0, 1, 1, 2, 2, 3, 4, 6)) if only is None else dice.choice((1, 2, 3))
    drawn = [_strike(dice, dice.choices(names, weights)[0], seconds) for _ in range(count)]
    return tuple(sorted(drawn, key=lambda strike: strike.at_s))


def _strike(dice: Random, fault: str, seconds: float) -> Strike:
    at_s, share = dice.uniform(0.2, seconds - 2.0), dice.random()
    number = dice.choice(LIMITS) if fault.startswith("limit-") else 0
    return Strike(at_s, fault, _lasts_s(dice, fault), share, number)


def _lasts_s(dice: Random, fault: str) -> float:
    if fault.startswith("kill-"):
        return 0.0
    if fault == "stall":
        return dice.choice((dice.uniform(0.5, 3.0), dice.uniform(0.5, 15.0)))
    if fault == "stop-client":
        return dice.choice((dice.uniform(2.0, 5.0), dice.uniform(2.0, 20.0)))
    if fault in STOPS:
        return dice.choice((dice.uniform(1.0, 5.0), dice.uniform(1.0, 30.0)))
    if fault.startswith("limit-"):
        return dice.uniform(4.0, 12.0)
    return dice.uniform(2.0, 8.0)


def from_json(facts: dict[str, Any]) -> Life:
    strikes: Sequence[dict[str, Any]] = facts.pop("strikes")
    return Life(**facts, strikes=tuple(Strike(**strike) for strike in strikes))
