"""`outrider exec`: runs a command on nodes of a living pool."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from ..api.checks import refuse
from ..api.printable import clean
from .flags import AsJson
from .node_choice import Reached, reached
from .run_choice import RunOrMachine
from .ssh import pinned
from .ssh_command import ssh_command

AT_A_TIME = 32  # most nodes that run the command concurrently
END_S = 2.0  # seconds for a command to end after SIGTERM, and again after SIGKILL
LINE_BYTES = 1024 * 1024
STREAMS = {1: "stdout", 2: "stderr"}
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes that shells use


class Lines(NamedTuple):
    """Lines that a command has printed. ``stream``: stdout or stderr."""

    stream: str
    lines: Sequence[str]


class Ended(NamedTuple):
    """The end of a command on a node. ``reason``: why the command could not be run; else empty."""

    code: int
    reason: str = ""


Tell = Callable[[Reached, Lines | Ended], None]


def execute(
    target: RunOrMachine, /, *command: str, node: int | None = None, rank: int | None = None, as_json: AsJson = False
) -> int:
    """Run a command on all nodes of a living pool, or on one.

    Elsewhere it runs by the system's ssh, in the home folder of the user who logs in; in a container by docker exec or
    podman exec, in the image's own folder; on this computer in the folder in which the node's tasks work. It is no
    task: it takes no slot, and does not see the image's environment. What it prints is marked with its node, and has no
    colours. It is no shell's line: for that write -- sh -c 'ls | wc -l'.

    Exits with 0, or with the exit code of the command that failed first: 255 where ssh did, 127 where the command is
    not there.

    Example: `outrider exec train --node 0 -- nvidia-smi -L`

    Parameters
    ----------
    target:
        A run, or the machine of a node, as i-0abc or the name of a host.
    command:
        The command and its arguments, after --.
    node:
        Only on the node of this number.
    rank:
        Only on the node of this rank of the newest broadcast.
    as_json:
        Print each line, and how the command ended on each node, as a JSON object, for programs.
    """
    if not command:
        refuse("what is to be run is missing: outrider exec RUN -- COMMAND ARGS.")
    if node is not None and rank is not None:
        refuse("exec takes --node or --rank, not both.")
    show = _show_as_json if as_json else _show
    return asyncio.run(_on_all(reached(target, node=node, rank=rank), command, show))


async def _on_all(nodes: Sequence[Reached], command: Sequence[str], show: Tell) -> int:
    """Run the command on all nodes. Return the first exit code that is not 0."""
    failures: list[int] = []
    turns = asyncio.Semaphore(AT_A_TIME)
    running: set[Command] = set()

    async def one(node: Reached) -> None:
        async with turns:
            ended = await _on(node, command, partial(show, node), running)
            show(node, ended)
            if ended.code:
                failures.append(ended.code)

    try:
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(one(node))
    except ExceptionGroup as group:  # raise only one of several errors, such as a BrokenPipeError for each node
        raise group.exceptions[0] from None
    finally:  # commands are ended here, because the group cancels its tasks a second time if two of them fail
        await asyncio.gather(*(each.end() for each in running))
    return failures[0] if failures else 0


async def _on(node: Reached, command: Sequence[str], tell: Callable[[Lines], object], running: set[Command]) -> Ended:
    """Run the command on one node. The command is in ``running`` while it runs; after an exception, it stays there."""
    with ExitStack() as stack:
        words, folder = list(command), node.folder
        if node.container is not None:
            words = node.container.command(words)
        if node.way is not None:
            pins = stack.enter_context(pinned(node.way))
            words = ssh_command(node.way, pins, terminal=False, command=words)
        try:
            started = await Command.start(words, folder, tell)
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            return Ended(code, _why(error, words[0], folder))
        running.add(started)
        code = await started.code
        running.discard(started)
        return Ended(code if code >= 0 else 128 - code)


class Command(asyncio.SubprocessProtocol):
    """A running command, in a session of its own.

    ``code``: a future of the exit code, set when all output is reported; if reporting fails, the future has that error.
    """

    def __init__(self, tell: Callable[[Lines], object]) -> None:
        self._tell = tell
        self._rests = {1: b"", 2: b""}  # the unfinished line of each stream
        self._over = asyncio.Event()
        self._transport: asyncio.SubprocessTransport
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, words: Sequence[str], folder: Path | None, tell: Callable[[Lines], object]) -> Command:
        """Start a command. ``tell`` is called with the lines of each stream.

        Raises:
            OSError: the command cannot be run.
        """
        _, started = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(tell),
            *words,
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return started

    async def end(self) -> None:
        """End the command and its children, even if they ignore SIGTERM.

        On cancellation, kill them by SIGKILL at once.
        """
        try:
            if not await self._ended_by(signal.SIGTERM):
                await self._ended_by(signal.SIGKILL)
        except asyncio.CancelledError:  # caused by a second Ctrl-C
            await self._ended_by(signal.SIGKILL)
            raise
        finally:
            # closing kills a process that has not ended, which may belong to another user
            with suppress(PermissionError):
                self._transport.close()  # a process in another session may still have the output open

    async def _ended_by(self, number: signal.Signals) -> bool:
        """Send a signal. Return whether the command has ended and no process has its output open any more."""
        with suppress(ProcessLookupError, PermissionError):  # the command runs as another user, as under sudo
            os.killpg(self._transport.get_pid(), number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._over.wait()
        return self._over.is_set()

    # --- as asyncio calls it ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Report complete lines. A line that is too long for memory is reported in pieces."""
        *lines, rest = (self._rests[fd] + data).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._rests[fd] = rest
        self._report(fd, lines)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if rest := self._rests[fd]:
            self._report(fd, [rest])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Set the exit code, after the command and both its streams have ended."""
        self._over.set()
        self._transport.close()
        code = self._transport.get_returncode()
        assert code is not None
        if not self.code.done():
            self.code.set_result(code)

    def _report(self, fd: int, lines: Sequence[bytes]) -> None:
        if self.code.done():  # nothing waits for the command any more
            return
        try:
            self._tell(Lines(STREAMS[fd], [clean(line.decode(errors="replace")) for line in lines]))
        except Exception as error:  # noqa: BLE001  whoever waits gets it
            self.code.set_exception(error)


def _why(error: OSError, program: str, folder: Path | None) -> str:
    if folder is not None and not folder.is_dir():
        return f"the node's folder {folder} is gone: has its pool ended?"
    return f"{program} cannot be run ({error.strerror})"


def _show(node: Reached, what: Lines | Ended) -> None:
    """Print lines to their stream, each with the name of its node."""
    if isinstance(what, Ended):
        if what.reason:
            print(f"[{node.name}] outrider: {what.reason}", file=sys.stderr)
        return
    _write(sys.stdout if what.stream == "stdout" else sys.stderr, [f"[{node.name}] {line}" for line in what.lines])


def _show_as_json(node: Reached, what: Lines | Ended) -> None:
    whose = {"node": node.number, "machine": node.machine}
    if isinstance(what, Ended):
        rows = [{**whose, "exit_code": what.code, "said": what.reason}]
    else:
        rows = [{**whose, "stream": what.stream, "text": line} for line in what.lines]
    _write(sys.stdout, [json.dumps(each) for each in rows])


def _write(target: TextIO | None, lines: Sequence[str]) -> None:
    if target is not None and lines:
        target.write("".join(f"{line}\n" for line in lines))
        target.flush()
