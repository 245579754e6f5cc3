"""The interface for commands on a host. A bootstrap needs nothing else from its connection to the host."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import NamedTuple, Protocol


class CommandResult(NamedTuple):
    status: int | None  # None: a signal ended the command
    signal: str | None
    stdout: bytes
    stderr: bytes  # only its last part if it is long

    @property
    def how(self) -> str:
        return f"signal {self.signal}" if self.status is None else f"exit status {self.status}"


class CommandRunner(Protocol):
    """A runner of commands on one host, logged in as one user."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        """Run a command to its end. ``argv`` is quoted for the user's login shell.

        Cancelling closes the command's stdin and ends the command.

        Args:
            argv: The command and its arguments.
            stdin: Written to the command's stdin, which is then closed. An iterator is dropped when the command ends.
            output: Receives stdout as it arrives; the result's stdout is then empty.

        Raises:
            ConnectionError: the connection is lost.
        """
        ...
