"""A connection that is given up half way leaves no socket behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from pathlib import Path

import asyncssh
import pytest

from outrider.engine.remote import ssh
from outrider.providers.base import Address, Machine, MachineId
from outrider.providers.contract import cancel_at_every_step

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_cancelled_at_any_await_it_closes_its_socket(tmp_path: Path) -> None:
    key, host_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "ssh.sock"))
    server = await asyncssh.listen(sock=listening, server_factory=Server, server_host_keys=[host_key])
    machine = Machine(
        MachineId("pool/m"),
        Address(path=str(tmp_path / "ssh.sock")),
        host_key.export_public_key().decode().strip(),
        embedded=True,
    )

    async def use() -> None:
        (await ssh.connect(machine, key)).abort()

    async def nothing_is_left(step: int) -> None:
        await asyncio.sleep(0)
        gc.collect()

    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what earlier tests left is not ours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps = await cancel_at_every_step(use, nothing_is_left)
    assert steps > 2
    server.close()
    await server.wait_closed()
