"""Detection of stragglers: the slow ranks of a broadcast, for which the other ranks wait. No I/O.

A collective is an operation of all ranks, such as all-reduce. If steps end with a collective, all ranks have the same
step time, however slow one of them is: the other ranks wait for the slow rank inside the collective. Only the time
outside of collectives shows the slow rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

# a straggler's time outside of collectives exceeds that of other ranks by at least this many seconds per step
LEAST_S = 0.001
LEAST_PART = 0.1  # ... and by at least this fraction of the step
ROUNDS = 3  # with fewer compared steps, no rank is called a straggler
AGREEING = 0.8  # the fraction of the steps in which a straggler must be slower than the other ranks
PIECES = 6  # if the tasks report no steps, the common profiled time is divided into at most this many equal pieces
LEAST_PIECE_S = 0.05


class Interval(NamedTuple):
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class RankTimes(NamedTuple):
    """The times of one rank, in seconds on a clock common to all ranks.

    ``seen``: the profiled time. ``steps`` are in order; ``collectives`` may overlap.
    """

    rank: int
    node: int
    seen: Interval
    steps: Sequence[Interval]
    collectives: Sequence[Interval]


class Row(NamedTuple):
    """The medians of a rank's steps: time of a step, time outside of and inside of collectives.

    ``before_s``: time until the step's first collective; None: the rank has no collectives.
    """

    rank: int
    node: int
    step_s: float
    before_s: float | None
    outside_s: float
    inside_s: float


class Table(NamedTuple):
    """The comparison of the ranks.

    Attributes:
        rows: One row for each rank.
        steps: How many steps were compared. 0: the ranks were not profiled at the same time, and each row covers a
            rank's whole profiled time.
        by_steps: True: the steps are those that the tasks reported; False: equal pieces of time.
        stragglers: The slow ranks, for which the others wait; possibly none.
        excess_s: How much longer the stragglers are outside of collectives than all other ranks, in the median step.
    """

    rows: Sequence[Row]
    steps: int
    by_steps: bool
    stragglers: Sequence[int]
    excess_s: float


def table_of(ranks: Sequence[RankTimes]) -> Table:
    """Return the comparison of a broadcast's ranks.

    With fewer than two ranks, or without collectives, none is a straggler.
    """
    by_steps = all(rank.steps for rank in ranks) and bool(ranks)
    rounds = _steps(ranks) if by_steps else _pieces(ranks)
    parts = [[_measured(rank, each) for rank, each in zip(ranks, round_, strict=True)] for round_ in rounds]
    seen = parts or [[_measured(rank, rank.seen) for rank in ranks]]
    rows = [_row(rank, [each[index] for each in seen]) for index, rank in enumerate(ranks)]
    stragglers, excess_s = _stragglers(ranks, parts)
    return Table(rows, len(rounds), by_steps, stragglers, excess_s)


class _Measured(NamedTuple):
    step_s: float
    before_s: float | None
    inside_s: float

    @property
    def outside_s(self) -> float:
        return self.step_s - self.inside_s


def _steps(ranks: Sequence[RankTimes]) -> list[list[Interval]]:
    """Match the steps of all ranks: a step of one rank with the step of each other rank that overlaps it most.

    If independent ranks run their steps at different times, match the steps by their order instead.
    """
    leader = min(ranks, key=lambda rank: len(rank.steps))
    rounds = []
    for step in leader.steps:
        together = [max(rank.steps, key=lambda other: _shared(step, other)) for rank in ranks]
        if all(_shared(step, other) > 0 for other in together):
            rounds.append(together)
    if len(rounds) >= min(ROUNDS, len(leader.steps)):
        return rounds
    return [list(steps) for steps in zip(*(rank.steps for rank in ranks), strict=False)]


def _pieces(ranks: Sequence[RankTimes]) -> list[list[Interval]]:
    began = max((rank.seen.began for rank in ranks), default=0.0)
    ended = min((rank.seen.ended for rank in ranks), default=0.0)
    count = min(PIECES, int((ended - began) / LEAST_PIECE_S)) if ended > began else 0
    width = (ended - began) / max(1, count)
    return [[Interval(began + n * width, began + (n + 1) * width)] * len(ranks) for n in range(count)]


def _measured(rank: RankTimes, step: Interval) -> _Measured:
    inside = [each for each in rank.collectives if _shared(each, step) > 0]
    before = min((max(each.began, step.began) for each in inside), default=None)
    return _Measured(step.seconds, None if before is None else before - step.began, _together_s(inside, step))


def _together_s(intervals: Sequence[Interval], within: Interval) -> float:
    """Return how many seconds of the interval ``within`` the other intervals cover."""
    seconds, until = 0.0, within.began
    for began, ended in sorted(intervals):
        covered = min(ended, within.ended) - max(began, until)
        if covered > 0:
            seconds += covered
            until = min(ended, within.ended)
    return seconds


def _row(rank: RankTimes, parts: Sequence[_Measured]) -> Row:
    before = [each.before_s for each in parts if each.before_s is not None]
    return Row(
        rank.rank,
        rank.node,
        median(each.step_s for each in parts),
        median(before) if before else None,
        median(each.outside_s for each in parts),
        median(each.inside_s for each in parts),
    )


def _stragglers(ranks: Sequence[RankTimes], parts: Sequence[Sequence[_Measured]]) -> tuple[list[int], float]:
    """Return the ranks that are outside of collectives longer than all others in most steps, and by how many seconds.

    Ranks are sorted by their median time outside of collectives; the widest gap separates the slow ranks from the
    others.
    """
    if len(ranks) < 2 or len(parts) < ROUNDS or not all(each.collectives for each in ranks):
        return [], 0.0
    usual = [median(round_[index].outside_s for round_ in parts) for index in range(len(ranks))]
    order = sorted(range(len(ranks)), key=lambda index: usual[index])
    gaps = [usual[order[at]] - usual[order[at - 1]] for at in range(1, len(order))]
    cut = gaps.index(max(gaps)) + 1
    fast, slow = order[:cut], order[cut:]
    excess = [min(r[i].outside_s for i in slow) - max(r[i].outside_s for i in fast) for r in parts]
    least_s = max(LEAST_S, LEAST_PART * median(each.step_s for round_ in parts for each in round_))
    agreeing = sum(each > least_s for each in excess)
    if len(slow) > len(fast) or agreeing < AGREEING * len(parts):
        return [], 0.0
    return sorted(ranks[index].rank for index in slow), median(excess)


def _shared(one: Interval, other: Interval) -> float:
    return min(one.ended, other.ended) - max(one.began, other.began)
