"""A chunk of a map: what a worker calls for several items. Nodes import this module, so it imports nothing that only
clients have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ..node.failure import failed
from ..wire.messages import Failed


class Raised(NamedTuple):
    """The error of an item, in the result of its chunk."""

    failed: Failed


def _failed(error: Exception) -> Failed:
    """Return the error as it travels: without a blob, since one too large for a frame travels as its text."""
    said, blob = failed(0, "call", error)
    for fd in blob:
        os.close(fd)
    return said._replace(error=None) if blob else said


class Chunk:
    """The function of a map's tasks: the user's, for one item after another."""

    def __init__(self, function: Callable[[Any], Any], *, alone: bool) -> None:
        """``alone``: one item each, whose error is the task's."""
        self.function = function
        self.alone = alone
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__module__ = function.__module__  # where the user's code is: `pickling` decides by it how it travels
        self.__qualname__ = f"{self.__name__}.<map>"  # and finds nothing of this name there

    def __call__(self, items: list[Any]) -> list[Any]:
        function = self.function
        results: list[Any] = []
        try:
            for item in items:
                results.append(function(item))  # noqa: PERF401  what came before an error is kept
        except Exception as error:  # it is the item's, and raised where its result would be
            if self.alone:
                raise
            results.append(Raised(_failed(error)))
        return results


class AsyncChunk(Chunk):
    """The function of the tasks of a map over an ``async def``."""

    async def __call__(self, items: list[Any]) -> list[Any]:  # type: ignore[override]
        results: list[Any] = []
        try:
            for item in items:
                results.append(await self.function(item))  # noqa: PERF401
        except Exception as error:
            if self.alone:
                raise
            results.append(Raised(_failed(error)))
        return results
