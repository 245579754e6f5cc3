"""The faults of a plan, with their times: they depend only on the plan, not on what happens in the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from ...engine.api.chaos import ChaosPlan
from ...engine.api.errors import SpecError
from .faults import Fault

# limits of the pause between two faults, as multiples of ``mtbf``: pauses are never zero and never too long for a test
LEAST, MOST = 0.25, 4.0


def check_ranks(chaos: ChaosPlan, nodes: int) -> None:
    """Check that every rank of a fault exists.

    Raises:
        SpecError: a fault is for a rank that a pool of at most ``nodes`` nodes never has.
    """
    for fault in chaos.faults:
        rank = _rank(fault, chaos)
        # a fault with ``at_step`` names the rank of a task, which is not limited by the number of nodes
        if fault.at_step is None and rank is not None and rank >= nodes:
            raise SpecError(f"Chaos: {fault} is for rank {rank}, and this pool's last rank is {nodes - 1}.")


class Planned(NamedTuple):
    """One planned fault. It is injected if its target exists."""

    number: int  # 1, 2, ... for faults at a time; 0, -1, ... for faults at a step
    at_s: float  # seconds after the pool became ready; 0 for a fault with ``at_step``
    fault: Fault
    rank: int | None  # the target's rank; None: ``share`` determines the target
    # random number in [0, 1) that picks the target from the ready nodes in rank order: 0 picks the first node
    share: float

    def target_rank(self, ready: Sequence[int]) -> int | None:
        """Return the target's rank, which is one of ``ready``.

        Return None if there is no target: the fault is skipped.
        """
        if self.rank is not None:
            return self.rank if self.rank in ready else None
        return sorted(ready)[int(self.share * len(ready))] if ready else None


def timed(chaos: ChaosPlan) -> Iterator[Planned]:
    """Yield the faults without ``at_step`` in the order of their times.

    The iterator has no end: only injected faults count towards ``most``, and faults without a target are skipped.
    """
    dice = Random(f"chaos {chaos.seed}")  # noqa: S311 - reproducible, not secret
    pack = [fault for fault in chaos.faults if fault.at_step is None]
    if chaos.mtbf is None or not pack:
        return
    at_s, dealt = 0.0, list[Fault]()
    for number in count(1):
        if not dealt:
            dealt = dice.sample(pack, len(pack))
        at_s += chaos.mtbf * min(max(dice.expovariate(1.0), LEAST), MOST)
        yield _planned(number, at_s, dealt.pop(), chaos, dice)


def stepped(chaos: ChaosPlan) -> list[Planned]:
    """Return the faults with ``at_step``.

    Their numbers are 0, -1, -2, ..., since timed faults have the numbers from 1.
    """
    dice = Random(f"steps {chaos.seed}")  # noqa: S311 - reproducible, not secret
    faults = chaos.at_steps[: chaos.most]
    return [_planned(1 - place, 0.0, fault, chaos, dice) for place, fault in enumerate(faults, 1)]


def _planned(number: int, at_s: float, fault: Fault, chaos: ChaosPlan, dice: Random) -> Planned:
    return Planned(number, at_s, fault, _rank(fault, chaos), dice.random())


def _rank(fault: Fault, chaos: ChaosPlan) -> int | None:
    return chaos.rank if fault.rank is None else fault.rank
