"""`outrider exec`: run a command on nodes of a living pool."""

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

AT_A_TIME = 32  # nodes
END_S = 2.0  # that a command has for its end, by SIGTERM and then by SIGKILL
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as of shells


class Lines(NamedTuple):
    """Lines that a command has printed. ``stream``: stdout or stderr."""

    stream: str
    lines: Sequence[str]


class Ended(NamedTuple):
    """The end of a command on a node. ``said``: why it could not be run."""

    code: int
    said: str = ""


Tell = Callable[[Reached, Lines | Ended], None]


def execute(
    target: RunOrMachine, /, *command: str, node: int | None = None, rank: int | None = None, as_json: AsJson = False
) -> int:
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
    as_json:
        Print each line, and how the command ended on each node, as a JSON object, for programs.
    """
    if not command:
        refuse("what is to be run is missing: outrider exec RUN -- COMMAND ARGS.")
    if node is not None and rank is not None:
        refuse("exec takes --node or --rank, not both.")
    told = _told_as_json if as_json else _told
    return asyncio.run(_on_all(reached(target, node=node, rank=rank), command, told))


async def _on_all(nodes: Sequence[Reached], command: Sequence[str], told: Tell) -> int:
    """Run it everywhere, and return the exit code that was the first but 0."""
    failures: list[int] = []
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(node: Reached) -> None:
        async with turns:
            ended = await _on(node, command, told)
            told(node, ended)
            if ended.code:
                failures.append(ended.code)

    try:
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(one(node))
    except ExceptionGroup as group:  # such as a BrokenPipeError for each node: one says it
        raise group.exceptions[0] from None
    return failures[0] if failures else 0


async def _on(node: Reached, command: Sequence[str], told: Tell) -> Ended:
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
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            return Ended(code, _why(error, words[0], folder))
        assert process.stdout is not None
        assert process.stderr is not None
        copies = [
            asyncio.ensure_future(_copied(stream, partial(told, node), name))
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
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
        return Ended(code if code >= 0 else 128 - code)


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


async def _copied(stream: asyncio.StreamReader, told: Callable[[Lines], object], name: str) -> None:
    """Tell of a stream line by line. A line that is too long for memory comes in pieces."""
    rest = b""
    while piece := await stream.read(64 * 1024):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > 1024 * 1024:
            lines, rest = [*lines, rest], b""
        told(Lines(name, [clean(line.decode(errors="replace")) for line in lines]))
    if rest:
        told(Lines(name, [clean(rest.decode(errors="replace"))]))


def _told(node: Reached, what: Lines | Ended) -> None:
    """Print lines to the stream that they are of, each with its node."""
    if isinstance(what, Ended):
        if what.said:
            print(f"[{node.name}] outrider: {what.said}", file=sys.stderr)
        return
    _write(sys.stdout if what.stream == "stdout" else sys.stderr, [f"[{node.name}] {line}" for line in what.lines])


def _told_as_json(node: Reached, what: Lines | Ended) -> None:
    whose = {"node": node.number, "machine": node.machine}
    if isinstance(what, Ended):
        found = [{**whose, "exit_code": what.code, "said": what.said}]
    else:
        found = [{**whose, "stream": what.stream, "text": line} for line in what.lines]
    _write(sys.stdout, [json.dumps(each) for each in found])


def _write(target: TextIO | None, lines: Sequence[str]) -> None:
    if target is not None and lines:
        target.write("".join(f"{line}\n" for line in lines))
        target.flush()
