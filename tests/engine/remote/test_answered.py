"""The pool hears that a machine is there as soon as it has logged in at the right one, before the image is brought."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Never

import asyncssh
import pytest

from outrider.actors.ports import ConnectFailed, NodeId
from outrider.engine.remote.connection import Connector, Terms
from outrider.engine.remote.fitness import Wanted
from outrider.engine.remote.views import Views
from outrider.engine.stewards import Stewards
from outrider.providers.base import Address, Machine, MachineId

pytestmark = pytest.mark.anyio


class Server(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return False


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


@pytest.fixture
def host_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


@pytest.fixture
async def path(tmp_path: Path, host_key: asyncssh.SSHKey) -> AsyncIterator[str]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "ssh.sock"))
    server = await asyncssh.listen(sock=listening, server_factory=Server, server_host_keys=[host_key])
    yield str(tmp_path / "ssh.sock")
    server.close()
    await server.wait_closed()


async def story(machine: Machine) -> list[str]:
    """What happens until the image would be brought."""
    happened: list[str] = []

    async def image() -> Never:
        happened.append("image")
        await asyncio.sleep(0)
        raise ConnectFailed("that is enough")

    terms = Terms(
        pool="p",
        views=Views("p", 1),
        key=asyncssh.generate_private_key("ssh-ed25519"),
        setup={},
        wanted=lambda _: Wanted(),
        lease_s=60.0,
        image=image,
        progress=lambda *_: None,
        differing=lambda *_: None,
        printed=lambda *_: None,
        stewards=Stewards("p", (), lambda: None),
    )
    connector = Connector(terms)
    with pytest.raises(ConnectFailed):
        await connector(NodeId(0), machine, lambda _: None, lambda: happened.append("answered"))
    await connector.close()
    return happened


async def test_an_answer_is_told_before_the_image_is_brought(path: str, host_key: asyncssh.SSHKey) -> None:
    machine = Machine(MachineId("pool/m"), Address(path=path), public(host_key))
    assert await story(machine) == ["answered", "image"]


@pytest.mark.parametrize("rotates", [False, True])
async def test_one_with_another_host_key_has_not_answered(path: str, rotates: bool) -> None:
    another = asyncssh.generate_private_key("ssh-ed25519")
    machine = Machine(MachineId("pool/m"), Address(path=path), public(another), rotate_host_key=rotates)
    assert await story(machine) == []


async def test_nor_has_one_where_nobody_listens(tmp_path: Path, host_key: asyncssh.SSHKey) -> None:
    machine = Machine(MachineId("pool/m"), Address(path=str(tmp_path / "nobody")), public(host_key))
    assert await story(machine) == []
