"""The iterator over the results of a map of a `SyncPool`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..api.errors import NotACall

T = TypeVar("T")


class MapResults(Iterator[T]):
    """The results of `SyncPool.map`, which is running already.

    If the iterator is dropped before any result is read, the map is cancelled with a warning.
    """

    def __init__(self, chunks: Iterator[list[T]], first: Future[list[T]], function: str) -> None:
        # each chunk of results takes one call into the loop's thread
        self._results = itertools.chain.from_iterable(chunks)
        self._first, self._function = first, function
        self._read = False

    def __iter__(self) -> Iterator[T]:
        self._read = True
        return self._results

    def __next__(self) -> T:
        self._read = True
        return next(self._results)

    def __repr__(self) -> str:
        return f"<results of pool.map({self._function}, ...): iterate over them, as in list(...)>"

    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise NotACall(
                "This pool was opened by `with`, and its verbs wait: leave out await and async, or open it by "
                "`async with`."
            )

    def __del__(self) -> None:
        if self._read:
            return
        self._first.cancel()
        warnings.warn(
            f"Nobody has read the results of pool.map({self._function}, ...), so most of its items did not run: "
            "iterate over it, as in list(pool.map(...)).",
            RuntimeWarning,
            stacklevel=2,
        )
