"""A connection that is given up half way leaves no socket behind."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import warnings
from pathlib import Path
from typing import Any

import anyio
import asyncssh
import pytest

from outrider.engine.transport import ssh
from outrider.providers.base import Address, Machine, MachineId
from outrider.testing.provider_contract import cancel_at_every_step

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
        executor_socket="executor.sock",
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


async def test_a_connection_that_is_given_up_leaves_the_loop_no_descriptor_to_watch(tmp_path: Path) -> None:
    """A number that the loop holds for watched is the next socket's, which then is never heard."""
    loop: Any = asyncio.get_running_loop()
    key = ssh.new_key()
    public = key.export_public_key().decode().strip()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "s"))
        mute.listen()
        machine = Machine(MachineId("m"), Address(path=str(tmp_path / "s")), public, executor_socket="executor.sock")
        before = set(loop._selector.get_map())
        with anyio.move_on_after(0.1) as scope:
            await ssh.connect(machine, key)
        assert scope.cancelled_caught
        for number in set(loop._selector.get_map()) - before:
            os.fstat(number)
