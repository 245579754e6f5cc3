"""`Local`: machines that are process groups of this computer, behind the same SSH and executor as any other machine."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ..base import Address, Embedding, LaunchRequest, Machine, MachineEvent, MachineGone, MachineId
from ..errors import NoCapacity, ProviderError
from .devices import Device, divide, find_devices
from .state import pool_directory, sweep

DOOR = "/outrider/executor"  # the server's name for its executor; no file
LAUNCH_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 10.0
READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Nodes on this computer, each a process group with a private directory and an SSH server of its own. Linux only.

    Tasks see this process's own Python environment (interpreter, packages, ``sys.path``) and run in the node's private
    directory. The computer's GPUs are divided evenly among the nodes; with fewer GPUs than nodes they see none.

    ``state``: where the pool's directory lives while the pool does; default ``$OUTRIDER_STATE``, else
    ``$XDG_STATE_HOME/outrider``, else ``~/.local/state/outrider``. ``shared_memory=False`` sends large data over SSH, as to
    a remote machine, instead of by file descriptor.
    """

    state: Path | None = None
    shared_memory: bool = True

    @property
    def name(self) -> str:
        return "local"

    @asynccontextmanager
    async def open(self, pool: str, embedding: Embedding) -> AsyncIterator[LocalFleet]:
        if sys.platform != "linux":
            raise ProviderError(
                "local nodes need Linux (process groups, memfd, PR_SET_PDEATHSIG); use another provider here"
            )
        directory = pool_directory(self.state, pool)
        fleet = LocalFleet(directory, embedding, shared_memory=self.shared_memory)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.listen)
            tasks.start_soon(anyio.to_thread.run_sync, sweep, directory.parent)
            try:
                yield fleet
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.close()
                tasks.cancel_scope.cancel()


@dataclass(slots=True)
class _Call:
    """A request that waits for the keeper's answers."""

    missing: int
    got: list[Machine] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)


class LocalFleet:
    """The client's end of one keeper."""

    def __init__(self, directory: Path, embedding: Embedding, *, shared_memory: bool) -> None:
        self._directory, self._shared_memory = directory, shared_memory
        self._log = directory / "keeper.log"
        self._control, self._pid = _spawn_keeper(directory, embedding)
        self._ids, self._calls = itertools.count(), itertools.count(1)
        self._launching: dict[str, _Call] = {}
        self._seats: dict[str, int] = {}  # machine -> which share of the devices it has; a replacement takes a free one
        self._terminating: dict[int, anyio.Event] = {}
        self._send_event, self._events = anyio.create_memory_object_stream[MachineEvent](10_000)
        self._devices: list[Device] | None = None
        self._ended = anyio.Event()

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        if self._devices is None:
            self._devices = await find_devices()
        devices = divide(self._devices, request.nodes, request.accelerator)
        call = _Call(count)
        orders = []
        for _ in range(count):
            name = f"n{next(self._ids)}"
            seat = next(seat for seat in itertools.count() if seat not in self._seats.values())
            self._seats[name], self._launching[name] = seat, call
            share = devices[seat % len(devices)]
            orders.append({"id": name, "env": share.environment, "accelerators": share.accelerators})
        await self._request({"op": "launch", "client_key": request.client_key, "machines": orders})
        with anyio.move_on_after(LAUNCH_DEADLINE_S):
            await call.done.wait()
        if self._ended.is_set() and call.missing:
            raise ProviderError(f"the process that keeps the local nodes died: {self._last_words()}")
        if not call.got:
            causes = "; ".join(call.causes) or f"nothing was heard for {LAUNCH_DEADLINE_S:g} s"
            raise NoCapacity(f"no local node started ({causes}): {self._last_words()}", retry_after_s=1.0)
        return call.got

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        number, done = next(self._calls), anyio.Event()
        self._terminating[number] = done
        try:
            await self._request({"op": "terminate", "call": number, "ids": list(ids)})
            await done.wait()
        except ProviderError:
            pass  # the keeper is gone, and with it every machine
        finally:
            del self._terminating[number]
        for machine in ids:
            self._seats.pop(machine, None)

    async def events(self) -> AsyncIterator[MachineEvent]:
        async for event in self._events:
            yield event

    async def listen(self) -> None:
        """Read what the keeper says until it ends."""
        unread = b""
        while True:
            try:
                data = self._control.recv(READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._control)
                continue
            except OSError:
                data = b""
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))
        self._ended.set()
        for call in self._launching.values():
            call.done.set()
        for done in self._terminating.values():
            done.set()
        self._send_event.close()

    def _heard(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "launched":
                machine = Machine(
                    id=MachineId(message["id"]),
                    address=Address(path=str(self._directory / message["id"] / "ssh.sock"), user="node"),
                    host_key=message["host_key"],
                    door=DOOR,
                    same_host=self._shared_memory,
                    embedded=True,
                    facts={"pid": str(message["pid"]), "group": str(message["group"])},
                )
                self._launched(message["id"], machine, "")
            case "gone":
                self._seats.pop(message["id"], None)
                self._launched(message["id"], None, message["cause"])
                self._send_event.send_nowait(MachineGone(MachineId(message["id"]), message["cause"]))
            case "terminated":
                done = self._terminating.get(message["call"])
                if done is not None:
                    done.set()

    def _launched(self, name: str, machine: Machine | None, cause: str) -> None:
        """One of a launch's machines is there, or (None) died on the way."""
        call = self._launching.pop(name, None)
        if call is None:
            return
        call.missing -= 1
        if machine is None:
            call.causes.append(f"{name}: {cause}")
        else:
            call.got.append(machine)
        if not call.missing:
            call.done.set()

    async def _request(self, message: dict[str, object]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            try:
                data = data[self._control.send(data) :]
            except BlockingIOError:
                await anyio.wait_writable(self._control)
            except OSError as error:
                raise ProviderError(f"the process that keeps the local nodes is gone: {self._last_words()}") from error

    async def close(self) -> None:
        """Every process of the pool ends, and its directory goes; the keeper closes its end when that is so."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with anyio.move_on_after(CLOSE_DEADLINE_S) as scope:
            await self._ended.wait()
        if scope.cancelled_caught:
            os.kill(self._pid, 9)  # everything below dies with its parent
        os.waitpid(self._pid, 0)
        self._control.close()
        self._events.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _last_words(self) -> str:
        try:
            return self._log.read_text()[-2000:].strip() or "it left no message"
        except OSError:
            return "it left no log"


def _spawn_keeper(directory: Path, embedding: Embedding) -> tuple[socket.socket, int]:
    """Start the keeper in a session of its own: a Ctrl-C in the terminal is the client's, who then ends the pool."""
    control, theirs = socket.socketpair()
    control.setblocking(False)
    theirs.set_inheritable(True)
    arguments = (theirs.fileno(), str(directory), embedding.fork_server, embedding.home)
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__package__}.keeper import main; main{arguments!r}"
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(directory / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", code],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
        )
    except BaseException:
        control.close()
        raise
    finally:
        os.close(null)
        os.close(log)
        theirs.close()
    return control, pid
