"""Clean-up that runs to its end in spite of cancellations, and whose errors are collected apart from the block's error.

CLEANUP-1: an error of the block is never replaced by one of its clean-up, and no error of a clean-up is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar

import anyio

from ...providers.base import Fleet, MachineUsage, UsageUnknown, Warned
from ...providers.errors import NotGone, ProviderError
from ..api.errors import CleanupError
from ..serialization.error_translation import BlockEnd, cleanup_error

F = TypeVar("F", bound=Fleet)
Warn = Callable[[str], object]
LastWord = Warned | MachineUsage | UsageUnknown  # the types of a fleet's reports during its exit


async def finished(task: asyncio.Future[None]) -> None:
    """Wait for ``task`` through any number of cancellations of the waiter; the first cancellation is raised
    afterwards.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        raise cancelled


@asynccontextmanager
async def uncancelled_exits() -> AsyncIterator[AsyncExitStack]:
    """Yield an exit stack whose exit callbacks are shielded from cancellation, and run to their end.

    Cancelling a scope around the stack ends the block, but not the exit callbacks.

    If the block was cancelled, the cancellation is raised again at the end. Without that, a task group in the stack
    would suppress it: inside the shield, the group believes that it has caused the cancellation itself.
    """
    cancelled: BaseException | None = None
    with anyio.CancelScope() as exits:
        async with AsyncExitStack() as stack:
            try:
                yield stack
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
                raise
            finally:
                exits.shield = True
    if cancelled is not None:
        raise cancelled


@asynccontextmanager
async def collecting_failures(
    opened: AbstractAsyncContextManager[F], failures: list[NotGone], tell: Callable[[LastWord], object] | None = None
) -> AsyncIterator[F]:
    """Wrap the provider's context, to keep errors of its exit apart from an error of the block.

    An error of the block is raised. Errors of the exit are appended to ``failures``. ``tell``: receives the fleet's
    warnings and usage figures during the exit, when nothing else reads the fleet's events.
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
                if tell is not None:
                    readers.append(asyncio.create_task(_pass_on(fleet, tell), name="outrider-leaving"))
    except BaseException as error:
        # types of errors of the exit: if the block raised no error, any ProviderError comes from the exit
        of_leaving = NotGone if block else ProviderError
        leaves = list(_leaves(error))
        if not entered or not all(isinstance(each, of_leaving) for each in leaves):
            raise  # the error comes from the block, or is a bug
        failures += [_not_gone(each) for each in leaves]
    finally:
        for reader in readers:
            reader.cancel()
    if block:
        raise block[0]  # CLEANUP-1: the error of the block, whatever errors the exit has added


def merged_failures(failures: Sequence[NotGone]) -> NotGone:
    if len(failures) == 1:
        return failures[0]
    known = [each.by for each in failures if each.by is not None]
    error = NotGone(
        "; ".join(each.why for each in failures),
        machines=[machine for each in failures for machine in each.machines],
        left=[what for each in failures for what in each.left],
        by=max(known) if len(known) == len(failures) else None,
        unsure=any(each.unsure for each in failures),
    )
    error.__cause__ = next((each.__cause__ for each in failures if each.__cause__ is not None), None)
    return error


def cleanup_result(failures: Sequence[NotGone], warn: Warn, block_end: BlockEnd) -> CleanupError | None:
    """Return the error for the user if machines may still be running.

    If only resources without cost are left, warn of these and return None.
    """
    if not failures:
        return None
    error = merged_failures(failures)
    if error.costs:
        return cleanup_error(error, block_end)
    left = ", ".join(error.left) or "something that costs nothing"
    warn(f"left at no cost: {left} ({error.why.rstrip('.')}); `outrider gc --apply` removes it")
    return None


def add_cleanup(error: BaseException, cleanup: CleanupError) -> None:
    error.add_note(f"Besides: {cleanup}")
    with suppress(Exception):  # the error's class may not accept attributes
        error.cleanup = cleanup  # type: ignore[attr-defined]


def raise_or_add(cleanup: CleanupError | None, error: BaseException | None) -> None:
    """Raise the error of the clean-up, if any. If the block has raised ``error``, add it to ``error`` instead."""
    if cleanup is None:
        return
    if error is None:
        raise cleanup
    add_cleanup(error, cleanup)


async def _pass_on(fleet: Fleet, tell: Callable[[LastWord], object]) -> None:
    with suppress(Exception):  # the events only inform: errors of reading them are ignored
        async for event in fleet.events():
            if isinstance(event, LastWord):
                tell(event)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _not_gone(error: BaseException) -> NotGone:
    if isinstance(error, NotGone):
        return error
    unknown = NotGone(str(error), unsure=True)
    unknown.__cause__ = error
    return unknown
