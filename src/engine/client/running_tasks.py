"""Stacks and profiles of a pool's running tasks, requested from all nodes at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ...actors import events as ev
from ...actors.interfaces import AttemptId
from ..api.printable import one_line, plain
from ..api.quantities import compact_time
from ..api.task_stack import TaskStack
from ..transport.diagnostics import STACKS_WITHIN_S
from ..transport.link import FIRST_BESIDE

if TYPE_CHECKING:
    from ...actors.interfaces import AttemptSeen, Order
    from ..serialization.task_payload import Payload
    from ..transport.link import NodeLink
    from .job_intake import JobIntake


async def stacks(core: JobIntake) -> list[TaskStack]:
    """Return the stacks of each running task and rank, ordered by job and rank.

    The stacks are also reported as events, and stored as files in the record, the folder of the run.
    """
    at = time.time()
    answers = await asyncio.gather(*map(_stacks_of, core.connector.links))
    taken = sorted((each for some in answers for each in some), key=lambda each: (each.job, each.rank, each.node))
    for event in events_of(taken, at):
        core.observer(event)
    return taken


def events_of(stacks: Iterable[TaskStack], at: float) -> list[ev.StackTaken]:
    return [
        ev.StackTaken(
            each.job,
            each.node,
            each.rank,
            each.text,
            each.function,
            ranks=each.ranks,
            generation=each.generation,
            at=at,
        )
        for each in stacks
    ]


async def _stacks_of(link: NodeLink) -> list[TaskStack]:
    orders = {attempt: order for attempt, order in link.orders.items() if attempt < FIRST_BESIDE}
    if not orders:
        return []
    answered: asyncio.Future[Mapping[AttemptId, AttemptSeen]] = asyncio.get_running_loop().create_future()
    link.stacks.ask(lambda seen: None if answered.done() else answered.set_result(seen))
    seen = await answered
    return [
        stack_of(
            link.node,
            order,
            seen[AttemptId(attempt)].text if attempt in seen else _unseen(attempt in link.orders, seen),
        )
        for attempt, order in orders.items()
        if attempt in seen or attempt in link.orders
    ]


def _unseen(runs: bool, seen: Mapping[AttemptId, AttemptSeen]) -> str:
    if seen or not runs:
        return "no stack: it waits for a slot of the node"
    return f"no stack: the node has not answered within {STACKS_WITHIN_S:g} s"


def stack_of(node: int, order: Order, text: str) -> TaskStack:
    name = one_line(cast("Payload", order.task.content).name)
    world = order.world
    ranks, generation = (1, 0) if world is None else (world.size, world.generation)
    return TaskStack(order.rank, ranks, int(node), name, int(order.task.job), generation, plain(text))


MOST = 1024  # most tasks in one profile


class Busy(Exception):
    """Another profile of the pool is in progress; the message says so."""


async def take_profile(
    core: JobIntake, *, steps: int, seconds: float, ranks: Callable[[int], bool] | None
) -> list[ev.ProfileTaken]:
    """Request a profile of all running tasks, or only of these ``ranks`` of broadcasts.

    Return the outcome of each task.

    Raises:
        Busy: another profile is in progress.
    """
    now = time.monotonic()
    if core.profile_until > now:
        raise Busy(f"a profile is being taken, for {core.profile_until - now:.0f} s more at most: ask again then")
    core.profile_until = now + seconds
    at = time.time()
    name = compact_time(at)
    try:
        requests = [(link, attempt) for link in core.connector.links for attempt in _attempts(link, ranks)][:MOST]
        taken = await asyncio.gather(*(link.profiles.take(attempt, name, steps, seconds) for link, attempt in requests))
    finally:
        core.profile_until = 0.0
    return sorted(taken, key=lambda each: (each.job, each.rank, each.node))


def _attempts(link: NodeLink, ranks: Callable[[int], bool] | None) -> Sequence[int]:
    def meant(order: Order) -> bool:
        return ranks is None or (order.world is not None and ranks(order.rank))

    return [attempt for attempt, order in link.orders.items() if attempt < FIRST_BESIDE and meant(order)]
