"""A launch without an answer, in a cloud that has no idempotency token: it is never sent again, but looked for.

ONCE-1: a launch without an answer is never sent again. Its machine is looked for by its label, for as long as lists may
be out of date. Then the launch counts as one that was not carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from ..errors import ProviderError
from .failures import AGAIN_S, CallRefused
from .instance_inventory import GRACE_S


async def look_for(service: str, sent_at: float, labelled: Callable[[], Awaitable[Sequence[str]]]) -> Sequence[str]:
    """The ids of the launch's machines. ``labelled`` lists those with its label; ``sent_at``: when its only try ended.

    Raises:
        CallRefused: they are not there yet, or the cloud does not answer: the launch stays lost.
        ProviderError: they will not come any more.
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
