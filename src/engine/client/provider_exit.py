"""A provider's context, left: what goes wrong there is kept apart from what went wrong before.

EXIT-1: an error of the block is never replaced by one of its clean-up, and no clean-up's is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar

from ...providers.base import Fleet, Warned
from ...providers.errors import NotGone, ProviderError
from ..api.errors import CleanupError
from ..serialization.error_translation import Course, cleanup_error

F = TypeVar("F", bound=Fleet)
Warn = Callable[[str], object]


@asynccontextmanager
async def parted(
    opened: AbstractAsyncContextManager[F], trouble: list[NotGone], warn: Warn | None = None
) -> AsyncIterator[F]:
    """The same context, left with what the block raised; what leaving it failed with is added to ``trouble``.

    ``warn``: told what the fleet warns of while it is left, when nobody else reads its events.
    """
    block: list[BaseException] = []
    readers: list[asyncio.Task[None]] = []
    entered = False
    try:
        async with opened as fleet:
            entered = True
            try:
                yield fleet
            except BaseException as error:
                block.append(error)
                raise
            finally:
                if warn is not None:
                    readers.append(asyncio.create_task(_hear(fleet, warn), name="outrider-leaving"))
    except BaseException as error:
        mine = [each for each in _leaves(error) if _is_of_leaving(each, block)] if entered else []
        if len(mine) < len(list(_leaves(error))):
            raise  # the block's own, or a defect
        trouble += [_not_gone(each) for each in mine]
    finally:
        for reader in readers:
            reader.cancel()
    if block:
        raise block[0]  # EXIT-1


def merged(trouble: Sequence[NotGone]) -> NotGone:
    """Several providers' as one."""
    if len(trouble) == 1:
        return trouble[0]
    known = [each.by for each in trouble if each.by is not None]
    error = NotGone(
        "; ".join(each.why for each in trouble),
        machines=[machine for each in trouble for machine in each.machines],
        left=[what for each in trouble for what in each.left],
        by=max(known) if len(known) == len(trouble) else None,
        unsure=any(each.unsure for each in trouble),
    )
    error.__cause__ = next((each.__cause__ for each in trouble if each.__cause__ is not None), None)
    return error


def outcome(trouble: Sequence[NotGone], warn: Warn, course: Course) -> CleanupError | None:
    """Return the error for users where machines may still be running; else warn of what is left at no cost."""
    if not trouble:
        return None
    error = merged(trouble)
    if error.costs:
        return cleanup_error(error, course)
    left = ", ".join(error.left) or "something that costs nothing"
    warn(f"left at no cost: {left} ({error.why.rstrip('.')}); `outrider gc --apply` removes it")
    return None


def add(error: BaseException, cleanup: CleanupError) -> None:
    """Add a cleanup error to the error that came first."""
    error.add_note(f"Besides: {cleanup}")
    with suppress(Exception):  # of a class that takes no attributes
        error.cleanup = cleanup  # type: ignore[attr-defined]


async def _hear(fleet: Fleet, warn: Warn) -> None:
    with suppress(Exception):  # nothing follows from a warning
        async for event in fleet.events():
            if isinstance(event, Warned):
                warn(event.text)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _is_of_leaving(error: BaseException, block: Sequence[BaseException]) -> bool:
    """After a block without an error, whatever the provider raises is."""
    return isinstance(error, NotGone) or (not block and isinstance(error, ProviderError))


def _not_gone(error: BaseException) -> NotGone:
    if isinstance(error, NotGone):
        return error
    unknown = NotGone(str(error), unsure=True)
    unknown.__cause__ = error
    return unknown
