"""The verbs that run something on nodes of a running pool: `outrider ssh` opens a shell, `outrider exec` runs a
command.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from ..api.checks import refuse
from ..api.printable import clean
from .common import WRONG, AsJson
from .node_choice import Reached, Way, reached, ssh_command
from .run_choice import RunOrMachine


def ssh(target: RunOrMachine, /, *, node: int | None = None) -> int:
    """Open a shell on a node of a running pool.

    Uses the ssh command of this computer, or docker exec or podman exec if the node is a container. ssh logs in with
    the pool's key, and accepts only the host key that the pool has pinned (on your own hosts, only the keys in your
    known_hosts). It asks no questions, and trusts no new host.

    Exits with the exit code of that command, and with 2 if there is no such node, or the node is this computer.

    Example: `outrider ssh train --node 0`

    Parameters
    ----------
    target:
        A run (id or name), or the machine of a node, such as i-0abc or a host name.
    node:
        The number of the node in its run. Default: the only node, or the first one that is ready.
    """
    nodes = reached(target, node=node)
    chosen = nodes[0]
    shell = [] if chosen.container is None else chosen.container.shell(terminal=sys.stdin.isatty())
    if chosen.way is not None:
        with pinned(chosen.way) as pins:
            return run_ssh(ssh_command(chosen.way, pins, terminal=True, command=shell))
    if not shell:
        print(
            f"outrider: {chosen.name} is this computer: `cd {chosen.folder}` is where its tasks work.", file=sys.stderr
        )
        return WRONG
    return run_ssh(shell)


@contextmanager
def pinned(way: Way) -> Iterator[Path]:
    """Yield the path of a private known_hosts file with the pinned host keys. It is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="outrider-ssh-") as folder:
        pins = Path(folder) / "known_hosts"
        pins.write_text(way.pins)
        yield pins


def run_ssh(words: Sequence[str]) -> int:
    try:
        with subprocess.Popen(words) as process:  # noqa: S603  words, for no shell
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # the remote shell handles Ctrl-C: keep waiting for ssh's end
                    continue
    except FileNotFoundError:
        refuse(f"there is no {words[0]} on this computer's PATH: install it (ssh is of OpenSSH's client).")


AT_A_TIME = 32  # at most so many nodes run the command at the same time
END_S = 2.0  # seconds to wait for the command's end after SIGTERM, and again after SIGKILL
LINE_BYTES = 1024 * 1024
STREAMS = {1: "stdout", 2: "stderr"}
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes as in shells: there is no such command; it cannot be executed


class Lines(NamedTuple):
    """Lines that a command has printed. ``stream``: stdout or stderr."""

    stream: str
    lines: Sequence[str]


class Ended(NamedTuple):
    """The end of a command on a node. ``reason``: why the command could not be run; empty if it ran."""

    code: int
    reason: str = ""


Tell = Callable[[Reached, Lines | Ended], None]


def execute(
    target: RunOrMachine, /, *command: str, node: int | None = None, rank: int | None = None, as_json: AsJson = False
) -> int:
    """Run a command on every node of a running pool, or on one node.

    The command is not a task of the pool: it takes no slot, and does not see the image's environment. It runs in the
    home folder of the login user (on nodes reached by ssh), in the image's own folder (in containers, by docker exec or
    podman exec), or in the folder of the node's tasks (on this computer). Each line of output begins with the node's
    name, and has no colours. The command is not given to a shell: for pipes and the like, write -- sh -c 'ls | wc -l'.

    Exits with 0 if the command succeeds on all nodes, else with the exit code of the command that failed first: 255 if
    ssh failed, 127 if the command was not found.

    Example: `outrider exec train --node 0 -- nvidia-smi -L`

    Parameters
    ----------
    target:
        A run (id or name), or the machine of a node, such as i-0abc or a host name.
    command:
        The command and its arguments, after --.
    node:
        Run only on the node with this number.
    rank:
        Run only on the node of this rank in the newest broadcast.
    as_json:
        Print each line of output, and how the command ended on each node, as a JSON object, for programs.
    """
    if not command:
        refuse("what is to be run is missing: outrider exec RUN -- COMMAND ARGS.")
    if node is not None and rank is not None:
        refuse("exec takes --node or --rank, not both.")
    show = _show_as_json if as_json else _show
    return asyncio.run(_on_all(reached(target, node=node, rank=rank), command, show))


async def _on_all(nodes: Sequence[Reached], command: Sequence[str], show: Tell) -> int:
    """Run the command on all nodes. Return the exit code of the first command that failed, else 0."""
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
    except ExceptionGroup as group:  # several nodes may fail in the same way: raise only the first error
        raise group.exceptions[0] from None
    finally:  # end the commands here, not in the tasks of the group, which the group may cancel twice
        await asyncio.gather(*(each.end() for each in running))
    return failures[0] if failures else 0


async def _on(node: Reached, command: Sequence[str], tell: Callable[[Lines], object], running: set[Command]) -> Ended:
    """Run the command on one node. While the command runs, it is in the set ``running``; after an exception, it stays
    in the set for the caller to end.
    """
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

    ``code``: a future of the exit code. It is set after all output was reported; if reporting fails, it has that error.
    """

    def __init__(self, tell: Callable[[Lines], object]) -> None:
        self._tell = tell
        # for each stream (1: stdout, 2: stderr), the beginning of a line whose end has not arrived
        self._rests = {1: b"", 2: b""}
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
        except asyncio.CancelledError:  # the user has pressed Ctrl-C a second time
            await self._ended_by(signal.SIGKILL)
            raise
        finally:
            # close() kills a command that still runs; this is forbidden if the command belongs to another user
            with suppress(PermissionError):
                # needed if a process outside of the command's session still has the output open
                self._transport.close()

    async def _ended_by(self, number: signal.Signals) -> bool:
        """Send a signal to the command. Wait up to `END_S`, and return whether the command has ended and no process has
        its output open any more.
        """
        # PermissionError: the command runs as another user, for example by sudo
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._over.wait()
        return self._over.is_set()

    # --- callbacks that asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Report complete lines. A line of more than `LINE_BYTES` is reported in pieces."""
        *lines, rest = (self._rests[fd] + data).split(b"\n")
        if len(rest) > LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._rests[fd] = rest
        self._report(fd, lines)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        if rest := self._rests[fd]:
            self._report(fd, [rest])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Set the exit code: asyncio calls this when the command and both of its output streams have ended."""
        self._over.set()
        self._transport.close()
        code = self._transport.get_returncode()
        assert code is not None
        if not self.code.done():
            self.code.set_result(code)

    def _report(self, fd: int, lines: Sequence[bytes]) -> None:
        if self.code.done():  # the caller has stopped waiting for the command, or an earlier report has failed
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
