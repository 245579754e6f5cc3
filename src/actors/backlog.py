"""The backlog of a pool: the waiting tasks, and how many slots and nodes they can use. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice

from .amounts import NOTHING
from .placement import Placement
from .retries import LEASED, OVER, QUEUED, Entry
from .waiting_line import WaitingLine

# number of waiting tasks whose needs are examined; the needs of all waiting tasks are extrapolated from them
SAMPLE = 1000


def backlog(
    queue: deque[Entry],
    pinned: Mapping[int, deque[Entry]],
    line: WaitingLine,
    placement: Placement,
    *,
    worth_s: float,
    now: float,
) -> tuple[int, float, int]:
    """Return the number of tasks for any node, the number of slots that they can use, and the number of awaited ranks.

    A task of a function that takes less than ``worth_s`` counts as a fraction of a slot. A task that needs amounts of
    processors or memory counts as all the slots that become useless on its node, because too little is left for further
    tasks.
    """
    while queue and queue[0].state != QUEUED:
        queue.popleft()
    ranks = [rank for rank, entries in pinned.items() if any(entry.state == QUEUED for entry in entries)]
    in_line = Counter(entry.task.needs or NOTHING for entry in line.entries if entry.task.on is None)
    tasks, slots = in_line.total(), sum((placement.worth(needs) * count for needs, count in in_line.items()), 0.0)
    stuck = [entry for entry in placement.stuck(now) if entry.state == LEASED and entry.task.on is None]
    for waiting in (queue, stuck):
        sample = [entry for entry in islice(waiting, SAMPLE) if entry.state != OVER]
        share = len(waiting) / max(1, min(len(waiting), SAMPLE))
        times = [entry.function.average_s for entry in sample]
        tasks += round(len(times) * share)
        slots += share * sum(1.0 if time is None else min(1.0, time / worth_s) for time in times)
    return tasks, slots, max((*ranks, *line.ranks), default=-1) + 1
