"""`Job`: the caller's handle of a submitted call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Job(Protocol[R_co]):
    """A submitted call. Awaiting it returns the result. The call runs even if nothing awaits the job.

    `asyncio.wait` accepts a job like an `asyncio.Future`.
    """

    def __await__(self) -> Generator[Any, None, R_co]: ...

    def cancel(self) -> bool:
        """End the task on its node, with its whole process tree. Return False if the job was over already."""
        ...

    def done(self) -> bool:
        """Return whether the job is over."""
        ...

    def result(self) -> R_co:
        """Return the result of a job that is done.

        Raises:
            asyncio.InvalidStateError: The job is not done.
        """
        ...

    def exception(self) -> BaseException | None:
        """Return the error of a job that is done; None if it returned."""
        ...

    def cancelled(self) -> bool:
        """Return whether the job was stopped before its end.

        For a stopped job, `result` raises `TaskStopped`, and `exception` returns it. If the job was stopped because the
        task that awaited it was cancelled, both raise `asyncio.CancelledError`, as for a future.
        """
        ...

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        """Call ``function`` with the job, on the pool's event loop, once the job is done."""
        ...

    def remove_done_callback(self, function: Callable[[Any], object], /) -> int:
        """Remove a function that `add_done_callback` has added. Return how many times it was registered."""
        ...
