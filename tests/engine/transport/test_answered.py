"""The pool hears that a machine is there as soon as it has logged in at the right one; what is there is seen to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Never
from unittest.mock import Mock

import asyncssh
import pytest

from outrider.actors.interfaces import ConnectFailed, NodeFacts, NodeId
from outrider.engine.image.bootstrap import Bootstrapped
from outrider.engine.transport.channels import Control
from outrider.engine.transport.connection import Connector, NodeConnection
from outrider.engine.transport.ssh_route import SSHRoute
from outrider.providers.base import Address, Machine, MachineId

from .any_settings import settings

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

    connector = Connector(settings(image))
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


async def test_an_executor_that_was_never_met_is_seen_to_again(
    path: str, host_key: asyncssh.SSHKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be gone by the next try: the host has started anew, or was out of memory."""
    brought: list[SSHRoute] = []

    async def bring(self: SSHRoute, connection: asyncssh.SSHClientConnection) -> Bootstrapped:
        brought.append(self)
        return Bootstrapped("/nowhere/executor.sock", "python", "runtime")

    monkeypatch.setattr(SSHRoute, "_bootstrapped", bring)
    connector = Connector(settings())
    machine = Machine(MachineId("pool/m"), Address(path=path), public(host_key))
    for _ in range(2):
        with pytest.raises(ConnectFailed):
            await connector(NodeId(0), machine, lambda _: None, lambda: None)
    await connector.close()
    assert len(brought) == 2
    assert brought[0] is brought[1]


@pytest.mark.parametrize("heard", [True, False])
async def test_one_that_may_not_have_heard_the_farewell_is_ended_all_the_same(heard: bool) -> None:
    evicted: list[NodeConnection] = []
    machine = Machine(MachineId("pool/m"), Address(path="/nowhere"), "")
    node = NodeConnection(NodeId(0), machine, settings(), lambda _: None, owner=Mock(evict=evicted.append))
    route = node._route
    assert isinstance(route, SSHRoute)
    route._ssh = Mock()
    node._control = control = Control()
    route._executor = Bootstrapped("/nowhere/executor.sock", "python", "runtime")
    node._facts = NodeFacts("host", "127.0.0.1", ())
    control.attach(node)
    ending = None if heard else ConnectionResetError("the connection was lost")
    asyncio.get_running_loop().call_soon(control.connection_lost, ending)
    await node.close()
    assert evicted == ([] if heard else [node])
