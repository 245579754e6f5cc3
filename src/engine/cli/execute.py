"""`outrider exec`: run a command on nodes of a living pool."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ..api.checks import refuse
from ..api.printable import clean
from .node_choice import Reached, reached
from .run_choice import RunWord
from .ssh import pinned
from .ssh_command import ssh_command

AT_A_TIME = 32  # nodes
END_S = 2.0  # that a command has for its end, by SIGTERM and then by SIGKILL
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as of shells


def execute(target: RunWord, /, *command: str, node: int | None = None, rank: int | None = None) -> int:
    """Run a command on all nodes of a living pool, or on one.

    Elsewhere it runs by the system's ssh, in the home folder of the user who logs in; on this computer in the folder in
    which the node's tasks work. It is no task: it takes no slot, and does not see the image's environment. What it
    prints is marked with its node, and has no colours. It is no shell's line: for that write -- sh -c 'ls | wc -l'.

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
    """
    if not command:
        refuse("what is to be run is missing: outrider exec RUN -- COMMAND ARGS.")
    if node is not None and rank is not None:
        refuse("exec takes --node or --rank, not both.")
    return asyncio.run(_on_all(reached(target, node=node, rank=rank), command))


async def _on_all(nodes: Sequence[Reached], command: Sequence[str]) -> int:
    """Run it everywhere, and return the exit code that was the first but 0."""
    failures: list[int] = []
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(node: Reached) -> None:
        async with turns:
            if code := await _on(node, command):
                failures.append(code)

    try:
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(one(node))
    except ExceptionGroup as group:  # such as a BrokenPipeError for each node: one says it
        raise group.exceptions[0] from None
    return failures[0] if failures else 0


async def _on(node: Reached, command: Sequence[str]) -> int:
    with ExitStack() as stack:
        words, folder = list(command), node.folder
        if node.way is not None:
            pins = stack.enter_context(pinned(node.way))
            words = ssh_command(node.way, pins, terminal=False, command=command)
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            print(f"[{node.name}] outrider: {_why(error, words[0], folder)}", file=sys.stderr)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        assert process.stdout is not None
        assert process.stderr is not None
        copies = [
            asyncio.ensure_future(_copied(stream, to, node.name))
            for to, stream in ((1, process.stdout), (2, process.stderr))
        ]
        try:
            await asyncio.gather(*copies)
            code = await process.wait()
        except BaseException:
            for copy in copies:
                copy.cancel()
            await asyncio.wait(copies)
            await _ended(process)
            raise
        return code if code >= 0 else 128 - code


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a command and what it has started, whatever it makes of SIGTERM, and read what is left of its output: asyncio
    closes pipes at their end.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.communicate()
                return


def _why(error: OSError, program: str, folder: Path | None) -> str:
    if folder is not None and not folder.is_dir():
        return f"the node's folder {folder} is gone: has its pool ended?"
    return f"{program} cannot be run ({error.strerror})"


async def _copied(stream: asyncio.StreamReader, to: int, name: str) -> None:
    """Copy a stream line by line, each with its node. A line that is too long for memory comes in pieces."""
    rest = b""
    while piece := await stream.read(64 * 1024):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > 1024 * 1024:
            lines, rest = [*lines, rest], b""
        _write(lines, to, name)
    if rest:
        _write([rest], to, name)


def _write(lines: Sequence[bytes], to: int, name: str) -> None:
    target = sys.stdout if to == 1 else sys.stderr
    if target is not None and lines:
        target.write("".join(f"[{name}] {clean(line.decode(errors='replace'))}\n" for line in lines))
        target.flush()
