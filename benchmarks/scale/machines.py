"""A provider whose machines are connections to one process on this computer, so that a pool may have a thousand."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from outrider.providers.base import Address, EntryPoints, LaunchRequest, Machine, MachineEvent, MachineId

if TYPE_CHECKING:
    from anyio.abc import Process


@dataclass(frozen=True)
class Played:
    """``ssh``: the nodes are reached by SSH on loopback, as rented ones are; otherwise by a unix socket, as local
    ones."""

    ssh: bool = False
    name: str = "played"
    local: bool = False
    free: bool = True

    @property
    def keyless(self) -> bool:
        return not self.ssh

    @asynccontextmanager
    async def open(self, pool: str, _entry_points: EntryPoints) -> AsyncIterator[PlayedFleet]:
        with TemporaryDirectory() as directory:
            server = await anyio.open_process(
                [sys.executable, "-m", "benchmarks.scale.server", f"{directory}/socket"], stdin=PIPE, stderr=None
            )
            try:
                yield PlayedFleet(pool, f"{directory}/socket", server)
            finally:
                with anyio.CancelScope(shield=True):
                    assert server.stdin is not None
                    await server.stdin.aclose()
                    await server.wait()


@dataclass
class PlayedFleet:
    pool: str
    socket: str
    server: Process
    machines: list[Machine] = field(default_factory=list)
    serves: list[str] = field(default_factory=list)  # what the server has said when it began: its port and its key

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        if not self.serves:
            assert self.server.stdin is not None
            assert self.server.stdout is not None
            await self.server.stdin.send(f"{request.client_key}\n".encode())
            # It may come in parts.
            said = await BufferedByteReceiveStream(self.server.stdout).receive_until(b"\n", 4096)
            self.serves = said.decode().split(maxsplit=1)
        first = len(self.machines)
        self.machines += [self.machine(number) for number in range(first, first + count)]
        return self.machines[first:]

    def machine(self, number: int) -> Machine:
        name = MachineId(f"{self.pool}-{number}")
        if len(self.serves) == 1:
            return Machine(name, Address(path=self.socket), "", self.socket, ssh=False)
        port, key = self.serves
        address = Address("127.0.0.1", int(port), user="bench")
        return Machine(name, address, key.strip(), self.socket)

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        del ids  # a machine is its connection, which the pool has closed

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:  # noqa: ARG002
        print(f"{machine} is of no use: {cause}", file=sys.stderr)

    async def events(self) -> AsyncIterator[MachineEvent]:
        await anyio.sleep_forever()
        yield  # type: ignore[misc]  # never: it makes this a generator
