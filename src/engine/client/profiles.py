"""Profiles of a pool's running tasks, requested from all nodes at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...actors import events as ev
from ..api.quantities import compact_time
from ..transport.link import FIRST_BESIDE

if TYPE_CHECKING:
    from ...actors.interfaces import Order
    from ..transport.link import NodeLink
    from .job_intake import JobIntake

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
