"""Clean-up that no cancellation cuts short, and whose failures are kept apart from those that came before it.

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
from ..serialization.pool_errors import BlockEnd, cleanup_error

F = TypeVar("F", bound=Fleet)
Warn = Callable[[str], object]
LastWord = Warned | MachineUsage | UsageUnknown  # the reports of a fleet during its exit


async def finished(task: asyncio.Future[None]) -> None:
    """Wait for ``task`` through any number of cancellations of the waiter; the first is raised afterwards."""
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
    """A stack whose exits all run to their end: the cancellation of a scope around it ends the block, but no exit.

    The block's cancellation is raised in any case, because a task group among the exits takes it for its own behind the
    shield.
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
    """Return the provider's context with another exit: it raises the error of the block, and appends its own errors to
    ``failures``.

    ``tell``: receives the warnings and the usage figures of the fleet during its exit, when its events have no other
    reader.
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
        of_leaving = NotGone if block else ProviderError  # after a block that raised none, any of the provider's is
        leaves = list(_leaves(error))
        if not entered or not all(isinstance(each, of_leaving) for each in leaves):
            raise  # the block's own, or a defect
        failures += [_not_gone(each) for each in leaves]
    finally:
        for reader in readers:
            reader.cancel()
    if block:
        raise block[0]  # CLEANUP-1


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
    """Return the error for users where machines may still be running; else warn of resources that are left at
    no cost.
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
    with suppress(Exception):  # of a class that takes no attributes
        error.cleanup = cleanup  # type: ignore[attr-defined]


def raise_or_add(cleanup: CleanupError | None, error: BaseException | None) -> None:
    """Raise ``cleanup``, if there is one; where there is an ``error`` of the block already, add it to that."""
    if cleanup is None:
        return
    if error is None:
        raise cleanup
    add_cleanup(error, cleanup)


async def _pass_on(fleet: Fleet, tell: Callable[[LastWord], object]) -> None:
    with suppress(Exception):  # nothing follows from it
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
