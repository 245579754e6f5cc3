"""What the two forms of the client have in common: whose life it is, and which calls each lane makes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .journal import Journal
from .plan import Life

PER_LANE = 10_000
GREEDY = (
    "flood",
    "large",
    "large_both",
    "rude",
)  # of descriptors: by what they carry, or by the births that they cause


class Own(Exception):
    """What the program raises inside of the pool's block."""


@dataclass
class Client:
    life: Life
    folder: Path
    journal: Journal
    began_at: float = field(default=0.0)

    def begin(self) -> None:
        self.began_at = time.monotonic()
        self.journal.write("ready")

    @property
    def works(self) -> bool:
        return time.monotonic() < self.began_at + self.life.seconds


@dataclass(frozen=True)
class Drawn:
    kind: str
    number: int
    dice: Random


def calls_of(client: Client, lane: int, kinds: Iterable[str]) -> Iterator[Drawn]:
    """Which calls come, and with what, is a function of the seed; how many come is not."""
    names = sorted(kinds)
    if any(fault.startswith("limit-") for fault in client.life.faults):
        names += [name for name in names if name in GREEDY] * 3
    for count in range(PER_LANE):
        if not client.works:
            return
        number = lane * PER_LANE + count
        dice = Random(f"call {client.life.seed} {number}")
        yield Drawn(dice.choice(names), number, dice)
