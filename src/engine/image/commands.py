"""Commands on a host: all that a bootstrap needs of the connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import NamedTuple, Protocol


class CommandResult(NamedTuple):
    status: int | None  # None: a signal ended the command
    signal: str | None
    stdout: bytes
    stderr: bytes  # its last part, if it is long

    @property
    def how(self) -> str:
        return f"signal {self.signal}" if self.status is None else f"exit status {self.status}"


class CommandRunner(Protocol):
    """One host, logged in as one user."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        """Run a command to its end. ``argv`` is quoted here for the user's login shell.

        ``stdin`` is written and then closed; an iterator is left when the command ends. ``output`` gets stdout as it
        arrives (the result has none then). Cancelling closes the command's stdin and ends it.

        Raises:
            ConnectionError: the connection is lost.
        """
        ...
