"""What bringing an image onto a host asks of a connection to it: that commands can be run there."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import NamedTuple, Protocol


class Exit(NamedTuple):
    """How a command ended. ``status`` None: by a ``signal``, or (that None too) the connection died with it."""

    status: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes  # its end, where it is long

    @property
    def how(self) -> str:
        if self.status is not None:
            return f"exit status {self.status}"
        return f"signal {self.signal}" if self.signal else "lost with its connection"


class Shell(Protocol):
    """One host, as one user, who may run commands there."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> Exit:
        """Run a command to its end. ``argv`` is data: it is quoted here for the user's login shell.

        ``stdin`` is written and then closed; an iterator is left early when the command ends. ``output`` gets stdout as
        it comes (then `Exit.stdout` is empty). Cancelling closes the command's stdin and ends it.

        Raises:
            ConnectionError: the connection is lost, or was.
        """
        ...
