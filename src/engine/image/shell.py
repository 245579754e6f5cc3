"""The protocol of a connection to a host, on which a bootstrap runs commands."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import NamedTuple, Protocol


class Exit(NamedTuple):
    """The end of a command. ``status`` is None if a ``signal`` ended it; both are None if the connection was lost."""

    status: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes  # its last part, if it is long

    @property
    def how(self) -> str:
        if self.status is not None:
            return f"exit status {self.status}"
        return f"signal {self.signal}" if self.signal else "lost with its connection"


class Shell(Protocol):
    """One host, logged in as one user."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> Exit:
        """Run a command to its end. ``argv`` is quoted here for the user's login shell.

        ``stdin`` is written and then closed; an iterator is left when the command ends. ``output`` gets stdout as it
        arrives (`Exit.stdout` is empty then). Cancelling closes the command's stdin and ends it.

        Raises:
            ConnectionError: the connection is lost.
        """
        ...
