"""Calls that a thread has the loop of its pool make. What would end the loop, and with it the pool, as a `SystemExit`
of the program's own code that runs there does, is handed to the thread in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from ..api.errors import OutriderError

P = ParamSpec("P")
T = TypeVar("T")
END: Any = object()


class ExitOnLoop(OutriderError):
    """Code of the program's own, such as a class that was unpickled, has raised ``exit`` where the pool runs."""

    def __init__(self, exit: BaseException) -> None:  # noqa: A002
        super().__init__(f"{type(exit).__name__} was raised by a value's own code, as it was pickled or unpickled.")
        self.exit = exit


async def contained(function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Call the function on the loop.

    Raises:
        ExitOnLoop: in place of what ends a loop of asyncio.
    """
    try:
        return await function(*args, **options)
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitOnLoop(error) from error


async def called(function: Callable[[], T]) -> T:
    return function()


async def following(iterator: AsyncIterator[T]) -> T:
    """Return the next value, or `END`."""
    return await anext(iterator, END)
