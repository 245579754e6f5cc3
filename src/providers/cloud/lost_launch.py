"""The search for the machine of a launch that got no response, for clouds without idempotency tokens.

ONCE-1: a launch without a response is never sent again. Its machine is searched for by its label, for as long as lists
may be outdated. After that, the launch counts as not carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from ..errors import ProviderError
from .failures import AGAIN_S, CallRefused
from .instance_inventory import GRACE_S


async def look_for(service: str, sent_at: float, labelled: Callable[[], Awaitable[Sequence[str]]]) -> Sequence[str]:
    """Return the ids of the launch's machines.

    ``sent_at``: the time at which the only try of the launch ended. ``labelled``: lists the machines with the launch's
    label.

    Raises:
        CallRefused: No machine is listed yet, or the cloud does not respond: the search must go on.
        ProviderError: No machine can appear any more: the launch was not carried out.
    """
    searched_at = anyio.current_time()
    try:
        machines = await labelled()
    except ProviderError as error:
        raise CallRefused(str(error), retry_after_s=error.retry_after_s or AGAIN_S, code=error.code) from error
    if machines:
        return machines
    if searched_at - sent_at < GRACE_S:
        problem = f"{service} shows no machine of the launch that had no answer: it is looked for again"
        raise CallRefused(problem, retry_after_s=AGAIN_S)
    raise ProviderError(
        f"{service} has shown no machine of a launch without an answer for {GRACE_S:.0f} s: it was not carried out",
        retry_after_s=AGAIN_S,
    )
