"""`Chaos`, a plan of faults: it depends only on the seed and the options, not on what happens in the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from ....lazy_dataclass import dataclass
from ...api import checks
from ...api.errors import SpecError
from .faults import LOSSES, Fault, checked

# limits of the pause between two faults, as multiples of ``mtbf``: pauses are never zero and never too long for a test
LEAST, MOST = 0.25, 4.0


@checks.checks_options
@dataclass(frozen=True, slots=True, init=False)
class Chaos:
    """The faults to inject into a pool of local nodes: ``Pool(..., chaos=Chaos(mtbf=15, seed=7))``, or see `chaos`.

    A fault that has no target when its time comes is skipped: for example while the node of its rank is being replaced,
    or because `KillRank` and `HoldGil` need a task and none runs.

    Args:
        mtbf: Mean seconds between faults, for the pool as a whole. None: only faults with ``at_step``. Default: 15.
        seed: The same seed gives the same faults, at the same times, at the same relative positions among the nodes.
        faults: The faults, drawn like cards from a pack: each fault comes once, in random order, before any fault
            repeats. Default: all faults that cause the loss of a node.
        rank: The rank of the node that is always the target, 0 for the head. None: any node.
        most: The largest number of faults that are injected. Default: 1000.

    Raises:
        SpecError: An option is not valid.
    """

    mtbf: float | None
    seed: int
    faults: tuple[Fault, ...]
    rank: int | None
    most: int

    def __init__(
        self,
        mtbf: float | None = 15.0,
        *,
        seed: int = 0,
        faults: Sequence[Fault | str] = LOSSES,
        rank: int | None = None,
        most: int = 1000,
    ) -> None:
        checks.count("Chaos(most=...)", most)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise SpecError(f"Chaos: seed takes a whole number, not {seed!r}.")
        if rank is not None:
            checks.count("Chaos(rank=...)", rank, least=0)
        valid = checked(faults)
        untimed = [fault for fault in valid if fault.at_step is None]
        if mtbf is None and untimed:
            raise SpecError(f"Chaos: without mtbf, when does {untimed[0]} happen? Give it at_step, or give mtbf.")
        object.__setattr__(self, "mtbf", None if mtbf is None else checks.seconds("Chaos: mtbf", mtbf))
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "faults", valid)
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "most", most)

    @property
    def at_steps(self) -> tuple[Fault, ...]:
        """The faults with ``at_step``."""
        return tuple(fault for fault in self.faults if fault.at_step is not None)


def checked_chaos(value: object) -> None:
    """Check the option ``Pool(chaos=...)``.

    Raises:
        SpecError: it is not a `Chaos`.
    """
    if not isinstance(value, Chaos):
        raise SpecError(f"Pool: chaos takes a Chaos, as in Chaos(mtbf=15, seed=7), not {value!r}.")


def check_ranks(chaos: Chaos, nodes: int) -> None:
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


def timed(chaos: Chaos) -> Iterator[Planned]:
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


def stepped(chaos: Chaos) -> list[Planned]:
    """Return the faults with ``at_step``.

    Their numbers are 0, -1, -2, ..., since timed faults have the numbers from 1.
    """
    dice = Random(f"steps {chaos.seed}")  # noqa: S311 - reproducible, not secret
    faults = chaos.at_steps[: chaos.most]
    return [_planned(1 - place, 0.0, fault, chaos, dice) for place, fault in enumerate(faults, 1)]


def _planned(number: int, at_s: float, fault: Fault, chaos: Chaos, dice: Random) -> Planned:
    return Planned(number, at_s, fault, _rank(fault, chaos), dice.random())


def _rank(fault: Fault, chaos: Chaos) -> int | None:
    return chaos.rank if fault.rank is None else fault.rank
