"""Handlers of requests that commands such as `outrider stop` send to the program that owns a run.

The requests arrive through the socket in the run's record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

PROFILE_S = 600.0  # most seconds of a profile
STACKS_CHARS = 4 << 20  # most characters of all stacks in a reply; the run's record has the full texts

if TYPE_CHECKING:
    from ..api.sink import Request
    from .job_intake import JobIntake


def requests_to(core: JobIntake, stop: Callable[[], Awaitable[str | None]]) -> Mapping[str, Request]:
    """Return the handler of each request, by the request's name. `runs/control.py` explains how to add a request.

    ``stop``: ends the pool, and returns a text about resources that may be left.
    """
    return {"stop": partial(_stop, stop), "stacks": partial(_stacks, core), "profile": partial(_profile, core)}


async def _stop(
    stop: Callable[[], Awaitable[str | None]],
    fields: Mapping[str, Any],  # noqa: ARG001  it has none
) -> Mapping[str, Any]:
    """End the pool, and reply when nothing of it is left.

    ``left`` in the reply: a text about resources that may be left.
    """
    return {"left": await stop()}


async def _stacks(core: JobIntake, fields: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG001
    """Take the stacks of all running tasks. ``stacks`` in the reply: the fields of each `TaskStack`."""
    from ..node.stack_text import bounded
    from .stacks import stacks

    taken = await stacks(core)
    most = STACKS_CHARS // max(1, len(taken))
    return {"stacks": [asdict(replace(each, text=bounded(each.text, max(200, most)))) for each in taken]}


async def _profile(core: JobIntake, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take a profile of running tasks that ends after ``steps`` steps or ``seconds``.

    ``ranks``: an array of [first, last], to profile only these ranks; else all tasks are profiled. ``profiles`` in the
    reply: the fields of each `ProfileTaken`.
    """
    from ..api.sink import Refused
    from .profiles import Busy, take_profile

    ranks = fields.get("ranks")
    chosen = None if ranks is None else lambda rank: any(first <= rank <= last for first, last in ranks)
    steps, seconds = int(fields.get("steps", 0)), float(fields["seconds"])
    if steps < 0 or not 0 < seconds <= PROFILE_S:
        raise Refused(f"a profile takes at most {PROFILE_S:g} seconds")
    try:
        taken = await take_profile(core, steps=steps, seconds=seconds, ranks=chosen)
    except Busy as error:
        raise Refused(str(error)) from None
    return {"profiles": [asdict(each) for each in taken]}
