"""The client's end of one keeper: asks it for machines and hears what becomes of them."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from ..base import Address, Embedding, LaunchRequest, Machine, MachineEvent, MachineGone, MachineId
from ..errors import NoCapacity, ProviderError
from .computer import refuse_too_much
from .devices import Device, divide, find_devices, warn_of_too_few
from .state import PoolDirectory

NOTICES = ("signal,USR1=30,USR2=withdrawn",)  # to the machine's process group; 30 s: the shortest that a cloud gives
DOOR = "/outrider/executor"  # the server's name for its executor; no file
LAUNCH_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 10.0
READ_BYTES = 64 * 1024


@dataclass(slots=True)
class _Call:
    """A launch that waits for the keeper's answers."""

    missing: int
    got: list[Machine] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)


class LocalFleet:
    """Implements `providers.base.Fleet`. `listen` runs beside it, shielded, and ends with `close`."""

    def __init__(
        self, directory: PoolDirectory, embedding: Embedding, *, shared_memory: bool, work_mib: int | None
    ) -> None:
        self._directory, self._shared_memory = directory, shared_memory
        self._log = directory.path / "keeper.log"
        self._control, self._pid = _spawn_keeper(directory.path, embedding, work_mib)
        self._ids, self._calls = itertools.count(), itertools.count(1)
        self._launching: dict[str, _Call] = {}
        self._seats: dict[str, int] = {}  # machine -> which share of the devices it has; a replacement takes a free one
        self._terminating: dict[int, anyio.Event] = {}
        self._send_event, self._events = anyio.create_memory_object_stream[MachineEvent](math.inf)
        self._devices: list[Device] | None = None
        self._listening, self._unread = anyio.Lock(), b""
        self._ended = anyio.Event()
        self._how = "died"

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        refuse_too_much(request, self._directory.path)
        if self._devices is None:
            self._devices = await find_devices()
            warn_of_too_few(self._devices, request.nodes, request.accelerator)
        shares = divide(self._devices, request.nodes, request.accelerator)
        call = _Call(count)
        orders = []
        for _ in range(count):
            name = f"{self._directory.path.name}/n{next(self._ids)}"  # also where its directory is
            seat = next(seat for seat in itertools.count() if seat not in self._seats.values())
            self._seats[name], self._launching[name] = seat, call
            share = shares[seat % len(shares)]
            orders.append({"id": name, "env": share.environment, "accelerators": share.accelerators})
        await self._request({"op": "launch", "client_key": request.client_key, "machines": orders})
        with anyio.move_on_after(LAUNCH_DEADLINE_S):
            await call.done.wait()
        if call.missing:
            await self._give_up(call)
        if not call.got:
            raise NoCapacity(f"no local node started ({'; '.join(call.causes)}){self._last_words()}", retry_after_s=1.0)
        return call.got

    async def _give_up(self, call: _Call) -> None:
        """Nobody will ask for the machines of ``call`` that are still missing.

        Raises:
            ProviderError: the keeper is gone.
        """
        if self._ended.is_set():
            raise self._keeper_died()
        late = [name for name, waiting in self._launching.items() if waiting is call]
        for name in late:
            del self._launching[name]
            call.causes.append(f"{name}: nothing was heard of it for {LAUNCH_DEADLINE_S:g} s")
        with anyio.move_on_after(CLOSE_DEADLINE_S):  # a keeper that says nothing ends them with the pool
            await self.terminate([MachineId(name) for name in late])

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

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # the next one is another

    async def events(self) -> AsyncIterator[MachineEvent]:
        async for event in self._events:
            yield event

    # --- the keeper -------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Read what the keeper says until it ends, and every machine with it. A second goes on where one was cut."""
        async with self._listening:
            if self._ended.is_set():
                return
            while data := await self._read():
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))
            self._how = _collect(self._pid)
            self._ended.set()
            for name in list(self._seats):
                self._gone(name, f"the process that keeps the local nodes {self._how}")
            for call in self._launching.values():
                call.done.set()
            for done in self._terminating.values():
                done.set()
            self._send_event.close()

    async def _read(self) -> bytes:
        while True:
            try:
                return self._control.recv(READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._control)
            except OSError:
                return b""

    def _heard(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "launched":
                self._launched(message["id"], self._machine(message), "")
            case "gone":
                self._launched(message["id"], None, message["cause"])
                self._gone(message["id"], message["cause"])
            case "terminated":
                done = self._terminating.get(message["call"])
                if done is not None:
                    done.set()

    def _machine(self, said: dict[str, Any]) -> Machine:
        directory = self._directory.path.parent / said["id"]
        return Machine(
            id=MachineId(said["id"]),
            address=Address(path=str(directory / "ssh.sock"), user="node"),
            host_key=said["host_key"],
            door=DOOR,
            notices=NOTICES,
            same_host=self._shared_memory,
            embedded=True,
            facts={"pid": str(said["pid"]), "group": str(said["group"]), "directory": str(directory)},
        )

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

    def _gone(self, name: str, cause: str) -> None:
        self._seats.pop(name, None)
        self._send_event.send_nowait(MachineGone(MachineId(name), cause))

    async def _request(self, message: dict[str, object]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            try:
                data = data[self._control.send(data) :]
            except BlockingIOError:
                await anyio.wait_writable(self._control)
            except OSError as error:
                raise self._keeper_died() from error

    async def close(self) -> None:
        """Every process of the pool ends, and its directory goes; the keeper closes its end when that is so."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with anyio.move_on_after(CLOSE_DEADLINE_S) as scope:
            await self.listen()  # who did may have been cancelled: the end of `asyncio.run` cancels every task
        if scope.cancelled_caught:
            os.kill(self._pid, signal.SIGKILL)  # everything below dies with its parent
            await self.listen()
        self._control.close()
        self._events.close()
        self._directory.remove()

    def _keeper_died(self) -> ProviderError:
        return ProviderError(f"the process that keeps the local nodes {self._how}{self._last_words()}")

    def _last_words(self) -> str:
        try:
            words = self._log.read_text()[-2000:].strip()
        except OSError:
            words = ""
        return f": {words}" if words else ""


def _collect(pid: int) -> str:
    """How it ended. It has closed its socket, which it does by ending: this takes no time."""
    from .processes import describe

    try:
        return describe(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the application collects every child, or ignores SIGCHLD
        return "died"


def _spawn_keeper(directory: Path, embedding: Embedding, work_mib: int | None) -> tuple[socket.socket, int]:
    """Start the keeper in a session of its own: a Ctrl-C in the terminal is the client's, who then ends the pool."""
    control, theirs = socket.socketpair()
    control.setblocking(False)
    theirs.set_inheritable(True)
    arguments = (theirs.fileno(), str(directory), work_mib, *astuple(embedding))
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is our directory, not the node's
    code = f"import sys; sys.path[:] = {paths!r}; from {__package__}.keeper import main; main{arguments!r}"
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
