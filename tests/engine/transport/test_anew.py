"""A node that falls silent is reached anew beside its connection: whichever is heard first is the one that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from outrider.actors.interfaces import Lost, NodeFacts, NodeId
from outrider.engine.transport import heartbeat, ssh, ssh_route
from outrider.engine.transport.channels import Control
from outrider.engine.transport.connection import NodeConnection
from outrider.engine.transport.heartbeat import HEARTBEAT_S, QUIET_S, SILENCE_S
from outrider.engine.transport.ssh_route import SSHRoute
from outrider.providers.base import Address, Machine, MachineId

from .any_settings import settings

pytestmark = pytest.mark.anyio
NOW = 1000.0  # of the heartbeats' clock, which stands still


class Dialling:
    """In place of `ssh.connect`: succeeds when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.through = asyncio.Event()
        self.made: list[Any] = []

    async def __call__(self, *_: Any) -> ssh.Connected:
        self.begun += 1
        await self.through.wait()
        self.made.append(Mock(spec=ssh.Connected, way_is_lost=False))
        return self.made[-1]  # type: ignore[no-any-return]


@pytest.fixture
async def dialling(monkeypatch: pytest.MonkeyPatch) -> Dialling:
    it = Dialling()
    monkeypatch.setattr(ssh, "connect", it)
    monkeypatch.setattr(ssh_route, "ANEW_S", 3600.0)  # no try begins beside one when this process stands still
    return it


@pytest.fixture
async def node(dialling: Dialling, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeConnection]:
    """Connected, and heard a moment ago."""
    monkeypatch.setattr(heartbeat, "time", Mock(monotonic=lambda: NOW))
    machine = Machine(MachineId("pool/m"), Address(host="h"), "")
    node = NodeConnection(NodeId(0), machine, settings(), Mock(), owner=Mock())
    node._facts = NodeFacts("h", "10.0.0.1", ())
    route(node)._ssh, node._control = Mock(spec=ssh.Connected, way_is_lost=False), Control()
    yield node
    node.cut("the test is over")
    node._route.begin_no_other()
    await asyncio.sleep(0)


def route(node: NodeConnection) -> SSHRoute:
    assert isinstance(node._route, SSHRoute)
    return node._route


async def reach(node: NodeConnection) -> ssh.Connected | None:
    await node._route.reach(again=True)
    return route(node)._ssh


def beat(node: NodeConnection, silent_s: float) -> None:
    node._silence.answered(NOW - silent_s)
    node._heartbeat.beat()


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def lost(node: NodeConnection) -> Lost | None:
    await rest()
    return node._lost


async def test_it_changes_over_once_it_is_reached(node: NodeConnection, dialling: Dialling) -> None:
    beat(node, QUIET_S + 0.5)
    assert await lost(node) is None
    dialling.through.set()
    over = await lost(node)
    assert over is not None
    assert not over.silent
    assert over.early_s == pytest.approx(SILENCE_S - QUIET_S - 0.5)
    assert await reach(node) is dialling.made[0]
    assert dialling.begun == 1
    dialling.made[0].abort.assert_not_called()


async def test_one_that_is_heard_again_keeps_its_connection(node: NodeConnection, dialling: Dialling) -> None:
    beat(node, QUIET_S + 0.5)
    await rest()
    node._silence.answered(NOW)
    dialling.through.set()
    assert await lost(node) is None
    dialling.made[0].abort.assert_called_once()
    assert route(node)._another is None


async def test_a_try_ends_when_the_node_is_heard_again(node: NodeConnection, dialling: Dialling) -> None:
    beat(node, QUIET_S + 0.5)
    await rest()
    trying = route(node)._another
    assert trying is not None
    beat(node, HEARTBEAT_S)
    await rest()
    assert trying.cancelled()
    assert await lost(node) is None


async def test_a_try_goes_on_when_the_silence_has_lasted_too_long(node: NodeConnection, dialling: Dialling) -> None:
    beat(node, QUIET_S)
    await rest()
    beat(node, SILENCE_S)
    assert await lost(node) == Lost("silent for 6 s", silent=True)
    reaching = asyncio.ensure_future(reach(node))
    await rest()
    dialling.through.set()
    assert await reaching is dialling.made[0]
    assert dialling.begun == 1


async def test_after_a_try_that_failed_comes_another(node: NodeConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Mock(side_effect=ConnectionRefusedError("not now"))
    monkeypatch.setattr(ssh, "connect", tried)
    for count in (1, 2):
        beat(node, QUIET_S + 0.1 * count)
        assert await lost(node) is None
        assert tried.call_count == count


async def test_nothing_of_a_try_is_left_when_the_node_is_closed(node: NodeConnection, dialling: Dialling) -> None:
    beat(node, QUIET_S)
    await rest()
    trying = route(node)._another
    assert trying is not None
    node._lost = Lost("its machine is gone")
    await node.close()
    await rest()
    assert trying.cancelled()
