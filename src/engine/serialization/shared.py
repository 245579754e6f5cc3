"""A value that many calls refer to: pickled once, sent to each node once, however many of its tasks ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..api.errors import SpecError
from ..node import blobs
from .payload import Blob

T = TypeVar("T")


class Shared(Generic[T]):
    """A value to which calls refer in their arguments. Their tasks get the value itself, with read-only arrays.

    Its bytes are kept, here and on the nodes, until it is closed and no unfinished call refers to it. It is for the
    thread of the pool's loop.
    """

    __slots__ = ("_closed", "_drop", "_sizes", "_uses", "blob")

    def __init__(self, blob: Blob, sizes: tuple[int, ...] | None, drop: Callable[[Blob], None]) -> None:
        self.blob, self._sizes, self._drop = blob, sizes, drop
        self._uses = 0
        self._closed = False

    def close(self) -> None:
        """Let go of the value: no further call will refer to it."""
        if not self._closed:
            self._closed = True
            self._forget()

    def released(self) -> None:
        """Note that a call which refers to the value has ended."""
        self._uses -= 1
        self._forget()

    def _forget(self) -> None:
        if self._closed and not self._uses:
            self._drop(self.blob)

    def __reduce__(self) -> tuple[Any, ...]:
        pending_references.append(self)
        return blobs.resolve_shared, (self.blob.name, self._sizes)


pending_references: list[Shared[Any]] = []  # pickled just now, on the loop, into the arguments of the call being packed


def referred() -> tuple[Shared[Any], ...]:
    """Return the shared values of the call that was just pickled, which counts as their user from now on.

    Raises:
        SpecError: one of them was closed.
    """
    found = tuple(dict.fromkeys(pending_references))
    pending_references.clear()
    if any(each._closed for each in found):
        raise SpecError("The call refers to a shared value that was closed: share it again.")
    for each in found:
        each._uses += 1
    return found
