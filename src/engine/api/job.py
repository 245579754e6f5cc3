"""`Job`: a submitted call, as its caller holds it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Job(Protocol[R_co]):
    """A submitted call. Awaiting it gives the result; it runs whether or not anybody waits. `asyncio.wait` takes it, as
    an `asyncio.Future`.
    """

    def __await__(self) -> Generator[Any, None, R_co]: ...

    def cancel(self) -> bool:
        """End the task on its node, with its whole process tree. False: it was over already."""
        ...

    def done(self) -> bool: ...

    def result(self) -> R_co:
        """The result of a job that is done.

        Raises:
            asyncio.InvalidStateError: it is not.
        """
        ...

    def exception(self) -> BaseException | None:
        """The error of a job that is done; None: it returned."""
        ...

    def cancelled(self) -> bool:
        """Return whether it was stopped before its end; `result` and `exception` give `TaskStopped` then. If whoever
        awaited the job was cancelled, which stops it, they raise `asyncio.CancelledError`, as those of a future.
        """
        ...

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        """Have ``function`` called with the job, on the pool's event loop, once it is done."""
        ...

    def remove_done_callback(self, function: Callable[[Any], object], /) -> int: ...
