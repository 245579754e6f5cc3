"""A local pool's machines. This module sends requests to the supervisor, reports ended machines, and restarts the
supervisor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from ...lazy_dataclass import dataclass
from ..base import Address, LaunchRequest, Machine, MachineEvent, MachineGone, MachineId
from ..errors import NoCapacity, ProviderError
from ..shared.sockets import EXECUTOR_SOCKET, SSH_SOCKET
from ..shared.threads import in_thread
from .client import SupervisorClient, SupervisorGone
from .state import PoolDirectory, sweep

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..shared.nvidia_smi import Device
    from .supervisor_start import StartedSupervisor

# How a test announces the end of a machine: by signals to its process group. 30 s is the shortest notice of any cloud.
NOTICES = ("signal,USR1=30,USR2=withdrawn",)
LAUNCH_DEADLINE_S = 30.0
# Seconds to wait for the supervisor's confirmation; the supervisor itself takes up to 5 s if processes are slow to end.
TERMINATE_DEADLINE_S = 15.0


@dataclass(slots=True)
class _Call:
    """A launch that waits until the supervisor has reported each of its machines."""

    missing: int
    got: list[Machine] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)


class LocalFleet:
    """Implements `providers.base.Fleet` for local machines. Call `start` first, and `close` at the end.

    When a supervisor ends, its machines end, too. The next launch starts another supervisor.
    """

    def __init__(
        self,
        directory: PoolDirectory,
        started: StartedSupervisor,
        *,
        start: Callable[[], StartedSupervisor],
        shared_memory: bool,
        as_remote: bool,
    ) -> None:
        """``start`` is called to start another supervisor; it raises OSError on failure."""
        self._directory, self._shared_memory, self._as_remote = directory, shared_memory, as_remote
        self._start_supervisor = start
        self._supervisor = self._client_of(started, worked=False)
        self._ids, self._calls = itertools.count(), itertools.count(1)
        self._launching: dict[str, _Call] = {}
        self._host_keys: dict[str, str] = {}  # public host keys of machines with an SSH server
        # Machine -> the index of its share of the devices. A replacement takes an index that is free.
        self._seats: dict[str, int] = {}
        self._terminating: dict[int, anyio.Event] = {}
        self._send_event, self._events = anyio.create_memory_object_stream[MachineEvent](math.inf)
        self._devices: list[Device] | None = None

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._listen()
        tasks.start_soon(partial(in_thread, sweep, self._directory.path.parent, abandon=True))

    def _client_of(self, started: StartedSupervisor, *, worked: bool) -> SupervisorClient:
        return SupervisorClient(
            self._directory.path, started, worked=worked, heard=self._heard, over=self._supervisor_ended
        )

    def _listen(self) -> None:
        self._tasks.start_soon(_shielded, self._supervisor.listen)

    def _living_supervisor(self) -> SupervisorClient:
        """Return the client of the supervisor. If the supervisor has ended, start another one first.

        Raises:
            ProviderError: The supervisor has ended, and another supervisor cannot be started.
        """
        if self._supervisor.ended:
            try:
                started = self._start_supervisor()
            except OSError as error:
                what = f"the process that keeps local nodes cannot be started ({error})"
                raise ProviderError(what, retry_after_s=1.0) from error
            self._supervisor = self._client_of(started, worked=self._supervisor.worked)
            self._listen()
        return self._supervisor

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        # Imported here, after the supervisor was started, so that the supervisor starts earlier.
        from .computer import divide, find_devices, refuse_too_much, warn_of_too_few

        refuse_too_much(request, self._directory.path)
        if self._devices is None:
            self._devices = await find_devices()
            warn_of_too_few(self._devices, request.nodes, request.accelerator)
        shares = divide(self._devices, request.nodes, request.accelerator)
        supervisor = self._living_supervisor()
        call = _Call(count)
        orders = []
        for _ in range(count):
            # The machine's id ("POOL/n0") is also the relative path of its directory.
            name = f"{self._directory.path.name}/n{next(self._ids)}"
            seat = next(seat for seat in itertools.count() if seat not in self._seats.values())
            self._seats[name], self._launching[name] = seat, call
            share = shares[seat % len(shares)]
            orders.append(
                {
                    "id": name,
                    "env": share.environment,
                    "accelerators": share.accelerators,
                    "sharing": len(shares),
                    "same_host": self._shared_memory,
                    "ssh": self._ssh(name, request.client_key) if self._as_remote else None,
                }
            )
        await supervisor.request({"op": "launch", "machines": orders})
        with anyio.move_on_after(LAUNCH_DEADLINE_S):
            await call.done.wait()
        if call.missing:
            await self._give_up(call, supervisor)
        if not call.got:
            causes = "; ".join(call.causes)
            raise NoCapacity(f"no local node started ({causes}){supervisor.last_words()}", retry_after_s=1.0)
        return call.got

    def _ssh(self, name: str, client_key: str) -> dict[str, str]:
        """Create a host key for the machine's SSH server, and return the server's settings."""
        from .ssh_server import new_host_key

        private, self._host_keys[name] = new_host_key()
        return {"host_key": private, "client_key": client_key}

    async def _give_up(self, call: _Call, supervisor: SupervisorClient) -> None:
        """End the machines of ``call`` that the supervisor has not reported in time.

        Raises:
            SupervisorGone
        """
        if supervisor.ended:
            raise supervisor.gone()
        late = [name for name, waiting in self._launching.items() if waiting is call]
        for name in late:
            del self._launching[name]
            call.causes.append(f"{name}: nothing was heard of it for {LAUNCH_DEADLINE_S:g} s")
        with suppress(ProviderError):  # if ending them fails, these machines end when the pool ends
            await self.terminate([MachineId(name) for name in late])

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End machines, and return when the supervisor confirms.

        Raises:
            ProviderError: There was no confirmation in time.
        """
        number, done = next(self._calls), anyio.Event()
        self._terminating[number] = done
        try:
            with suppress(SupervisorGone):  # a supervisor that is gone has ended every machine
                await self._supervisor.request({"op": "terminate", "call": number, "ids": list(ids)})
                with anyio.move_on_after(TERMINATE_DEADLINE_S):
                    await done.wait()
                if not done.is_set():
                    what = f"the end of {', '.join(ids)} was not confirmed within {TERMINATE_DEADLINE_S:g} s"
                    raise ProviderError(what, retry_after_s=1.0)
        finally:
            del self._terminating[number]
        for machine in ids:
            self._seats.pop(machine, None)
            self._host_keys.pop(machine, None)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # nothing to do: the next local machine is a new one

    async def events(self) -> AsyncIterator[MachineEvent]:
        async for event in self._events:
            yield event

    # --- the supervisor ---------------------------------------------------------------------------------------------

    def _supervisor_ended(self) -> None:
        """Report every machine as ended, because its supervisor has ended."""
        for name in list(self._seats):
            self._gone(name, f"the process that keeps the local nodes {self._supervisor.how}")
        for call in self._launching.values():
            call.done.set()
        for done in self._terminating.values():
            done.set()

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

    def _machine(self, state: dict[str, Any]) -> Machine:
        directory = self._directory.path.parent / state["id"]
        executor = str(directory / EXECUTOR_SOCKET)
        return Machine(
            id=MachineId(state["id"]),
            address=Address(path=str(directory / SSH_SOCKET) if self._as_remote else executor, user="node"),
            host_key=self._host_keys.get(state["id"], ""),
            # A path relative to the machine's directory, because the machine's SSH server runs there.
            executor_socket=EXECUTOR_SOCKET if self._as_remote else executor,
            ssh=self._as_remote,
            notices=NOTICES,
            same_host=self._shared_memory,
            facts={"pid": str(state["pid"]), "group": str(state["group"]), "directory": str(directory)},
        )

    def _launched(self, name: str, machine: Machine | None, cause: str) -> None:
        """Record one result of a launch: a machine, or None if the machine died while it started."""
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
        self._host_keys.pop(name, None)
        self._send_event.send_nowait(MachineGone(MachineId(name), cause))

    async def close(self) -> None:
        """End every process of the pool, and remove the pool's directory. The wait is bounded."""
        await self._supervisor.close()
        self._send_event.close()
        self._events.close()
        self._directory.remove()


async def _shielded(run: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await run()
