"""A remote shell between the pool's nodes over the pool's own connections: no ssh among nodes, no keys.

``mpirun`` runs `mpi_rsh`, which sends the command to the agent on its node; the agent sends it to the client's
switchboard, which passes it to the agent on the target node. The command's input and output take the same way.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...actors.interfaces import NodeFacts, NodeId
from ..api.plugin import Heard, Joined, Left, NodeSide, Setup
from ..node.process import end_tree
from . import mpi_rsh

if TYPE_CHECKING:
    from ..api.plugin import PluginContext

Key = tuple[int, int]  # identifies a command: the node that sent it, and the number of its channel on that node

# Kinds of messages between agents and switchboard; each is (kind, key, ...).
ASK, RUN, STDIN, PRINTED, EXITED, END = "ask", "run", "stdin", "printed", "exited", "end"


# --- on the node -----------------------------------------------------------------------------------------------------


@contextmanager
def serving(side: NodeSide) -> Iterator[Setup]:
    """Run the node's agent during the block."""
    directory = side.directory / "mpi"
    directory.mkdir(mode=0o700)
    program = directory / "rsh"
    words = [sys.executable, "-I", "-S", str(Path(mpi_rsh.__file__)), str(directory / "agent")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    agent = Agent(side, directory)
    side.heard = agent.heard
    threading.Thread(target=agent.serve, daemon=True, name="outrider-mpi").start()
    try:
        yield Setup(env={mpi_rsh.RSH: str(program)})
    finally:
        agent.close()


class Agent:
    """The node's agent: it sends commands to other nodes, and runs their commands. It has a thread per pipe."""

    def __init__(self, side: NodeSide, directory: Path) -> None:
        self._side = side
        self._listener = _listening(directory)
        self._channels = itertools.count(1)
        self._open_requests: dict[Key, socket.socket] = {}
        self._running: dict[Key, subprocess.Popen[bytes]] = {}
        self._links: list[Path] = []

    def serve(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._ask, args=(sock,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for process in list(self._running.values()):
            end_tree(process)
        for link in self._links:
            with suppress(OSError):
                link.unlink()
                link.parent.rmdir()

    def heard(self, message: Any) -> None:
        word, key, *rest = message
        match word:
            case "run":
                self._run(key, *rest)
            case "stdin":
                self._feed(key, *rest)
            case "end":
                if (process := self._running.get(key)) is not None:
                    end_tree(process)
            case "printed":
                self._answer(key, *rest)
            case "exited":
                self._answer(key, mpi_rsh.EXIT, str(rest[0]).encode())
            case _:
                pass

    # --- commands for other nodes -----------------------------------------------------------------------------------

    def _ask(self, sock: socket.socket) -> None:
        key = (self._side.node, next(self._channels))
        self._open_requests[key] = sock
        while (frame := mpi_rsh.receive(sock)) is not None:
            kind, data = frame
            if kind == mpi_rsh.ASK:
                self._side.tell((ASK, key, json.loads(data)))
            else:
                self._side.tell((STDIN, key, data))
        if self._open_requests.pop(key, None) is not None:  # mpi_rsh ended before its command did
            self._side.tell((END, key))
        sock.close()

    def _answer(self, key: Key, kind: int, data: bytes) -> None:
        sock = self._open_requests.get(key)
        if sock is None:
            return
        if kind == mpi_rsh.EXIT:
            del self._open_requests[key]
        with suppress(OSError):  # mpi_rsh is gone, which the reading thread handles
            mpi_rsh.send(sock, kind, data)

    # --- commands that run here -------------------------------------------------------------------------------------

    def _run(self, key: Key, command: str, cwd: str) -> None:
        self._link_work_directory(Path(cwd))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "PMIX_"))}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        try:
            process = subprocess.Popen(  # noqa: S603  a remote shell's purpose
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            self._side.tell((PRINTED, key, mpi_rsh.ERR, f"outrider: {error}\n".encode()))
            self._side.tell((EXITED, key, mpi_rsh.FAILED))
            return
        self._running[key] = process
        threading.Thread(target=self._watch, args=(key, process), daemon=True).start()

    def _watch(self, key: Key, process: subprocess.Popen[bytes]) -> None:
        readers = [
            threading.Thread(target=self._read, args=(key, kind, pipe), daemon=True)
            for kind, pipe in ((mpi_rsh.OUT, process.stdout), (mpi_rsh.ERR, process.stderr))
        ]
        for reader in readers:
            reader.start()
        status = process.wait()
        for reader in readers:
            reader.join(1.0)  # a daemon that the command left behind may hold the pipes open
        self._running.pop(key, None)
        self._side.tell((EXITED, key, status if status >= 0 else 128 - status))

    def _read(self, key: Key, kind: int, pipe: Any) -> None:
        while data := pipe.read1(mpi_rsh.PIECE_BYTES):
            self._side.tell((PRINTED, key, kind, data))

    def _feed(self, key: Key, data: bytes) -> None:
        process = self._running.get(key)
        if process is None or process.stdin is None:
            return
        with suppress(OSError, ValueError):  # the command no longer reads its input
            if data:
                process.stdin.write(data)
                process.stdin.flush()
            else:
                process.stdin.close()

    def _link_work_directory(self, cwd: Path) -> None:
        """Create the path of the caller's work directory here, as a symlink to this node's work directory.

        The launched command changes to the caller's work directory, and fails if that path does not exist.
        """
        if cwd.exists():
            return
        with suppress(OSError):
            cwd.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            cwd.symlink_to(self._side.directory)
            self._links.append(cwd)


def _listening(directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    anchor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{anchor}/agent")
        os.chmod("agent", 0o600, dir_fd=anchor)  # no client can connect before the socket listens
    finally:
        os.close(anchor)
    listener.listen(1024)
    return listener


# --- at the client ---------------------------------------------------------------------------------------------------


class Switchboard:
    """The part at the client: it passes commands to nodes, and replies back.

    `Pool.handle` returns it, for its `hosts`.
    """

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._nodes: dict[NodeId, NodeFacts] = {}
        self._targets: dict[Key, NodeId] = {}
        self._listening: asyncio.Task[None] | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the nodes' names for ``mpirun -hosts``: addresses, or ``node-1``, ... for nodes on one computer."""
        known = Counter(facts.address for facts in self._nodes.values())
        return tuple(
            facts.address if known[facts.address] == 1 else f"node-{node}" for node, facts in self._nodes.items()
        )

    async def __aenter__(self) -> Switchboard:
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _listen(self) -> None:
        async for news in self._context.news():
            match news:
                case Joined(node, facts):
                    self._nodes[node] = facts
                case Left(node):
                    self._left(node)
                case Heard(node, message):
                    self._heard(node, *message)

    def _heard(self, node: NodeId, word: str, key: Key, *rest: Any) -> None:
        origin = NodeId(key[0])
        match word:
            case "ask":
                self._requested(node, key, rest[0])
            case "printed":
                self._context.tell(origin, (word, key, *rest))
            case "exited":
                self._targets.pop(key, None)
                self._context.tell(origin, (word, key, *rest))
            case _:  # STDIN and END are for the node that runs the command
                if (target := self._targets.get(key)) is not None:
                    self._context.tell(target, (word, key, *rest))

    def _requested(self, node: NodeId, key: Key, request: dict[str, str]) -> None:
        target = self._named(request["host"])
        if target is None:
            has = ", ".join(self.hosts)
            text = f"outrider: no node of this pool is called {request['host']!r}; there are {has}\n"
            self._context.tell(node, (PRINTED, key, mpi_rsh.ERR, text.encode()))
            self._context.tell(node, (EXITED, key, mpi_rsh.FAILED))
            return
        self._targets[key] = target
        self._context.tell(target, (RUN, key, request["command"], request["cwd"]))

    def _named(self, host: str) -> NodeId | None:
        """Find a node by address, host name or number (``node-3``, which distinguishes nodes on one computer)."""
        for node, facts in self._nodes.items():
            if host in (facts.address, facts.hostname, f"node-{node}"):
                return node
        return None

    def _left(self, node: NodeId) -> None:
        self._nodes.pop(node, None)
        for key, target in list(self._targets.items()):
            if target == node:
                del self._targets[key]
                self._context.tell(NodeId(key[0]), (EXITED, key, mpi_rsh.FAILED))
            elif key[0] == node:
                del self._targets[key]
                self._context.tell(target, (END, key))
