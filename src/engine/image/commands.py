"""The interface for running commands on a host. A bootstrap uses nothing else of its connection to the host."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import NamedTuple, Protocol


class CommandResult(NamedTuple):
    status: int | None  # exit status; None: a signal ended the command
    signal: str | None
    stdout: bytes
    stderr: bytes  # only the end of stderr if it is long

    @property
    def how(self) -> str:
        return f"signal {self.signal}" if self.status is None else f"exit status {self.status}"


class CommandRunner(Protocol):
    """Runs commands on one host, as one user."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        """Run a command, and wait until it ends. ``argv`` is quoted for the user's login shell.

        On cancellation, the command's stdin is closed, and the command is ended.

        Args:
            argv: The command and its arguments.
            stdin: Bytes for the command's stdin, which is then closed. When the command ends, the rest is not read.
            output: Called with parts of stdout as they arrive. The result then contains no stdout.

        Raises:
            ConnectionError: the connection is lost.
        """
        ...
