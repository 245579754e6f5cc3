"""A connection that breaks while the node greets, or is set up: the client comes back with the same session."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outrider import Local, Plugin, Pool, compute
from outrider.engine.api.plugin import NodeSide, Setup
from outrider.engine.transport.channels import Channel
from outrider.engine.transport.connection import NodeConnection
from outrider.engine.transport.route import UnixRoute

pytestmark = pytest.mark.anyio


@compute
def where() -> int:
    return os.getppid()


async def test_a_welcome_that_is_lost_costs_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator: the next try came with another session, and the node refused it for good."""
    accepted, lost = NodeConnection._accepted, list[object]()

    def lose_the_first(self: NodeConnection, answer: Any) -> Any:
        if len(lost) < 2:
            lost.append(answer)
            raise ConnectionResetError("the connection broke")
        return accepted(self, answer)

    monkeypatch.setattr(NodeConnection, "_accepted", lose_the_first)
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        assert len(set(await pool.broadcast(where()))) == 2
        nodes = [node.node for node in pool.snapshot().nodes]
    assert len(lost) == 2
    assert nodes == [0, 1]


@dataclass(frozen=True)
class Slow(Plugin):
    """Its half on a node takes until there is a file."""

    folder: str
    name: ClassVar[str] = "slow"

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:
        Path(self.folder, "begun").touch()
        while not Path(self.folder, "go").exists():
            time.sleep(0.01)
        yield Setup()


async def test_one_that_breaks_while_plugins_are_set_up_is_tried_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reach, set_up, seen, refused = UnixRoute.reach, NodeConnection.set_up_plugins, list[NodeConnection](), list[int]()

    async def seen_first(self: NodeConnection) -> None:
        seen.append(self)
        await set_up(self)

    async def cut() -> None:
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)

        async def refuse_twice(self: UnixRoute, *, again: bool) -> None:
            if len(refused) < 2:
                refused.append(1)
                raise ConnectionRefusedError("its server is being started anew")
            (tmp_path / "go").touch()
            await reach(self, again=again)

        monkeypatch.setattr(UnixRoute, "reach", refuse_twice)
        seen[0].cut("the connection broke")

    monkeypatch.setattr(NodeConnection, "set_up_plugins", seen_first)
    cutting = asyncio.ensure_future(cut())
    async with Pool(provider=Local(), nodes=1, plugins=[Slow(str(tmp_path))], console="silent") as pool:
        await cutting
        assert [node.node for node in pool.snapshot().nodes] == [0]
    assert len(refused) == 2
    assert len(seen) == 1


async def test_a_node_that_does_not_say_what_it_is_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted, made = NodeConnection._accepted, list[Channel]()

    def without_facts(self: NodeConnection, answer: Any) -> Any:
        assert isinstance(self._route, UnixRoute)
        made.extend(self._route._channels or ())
        welcome = accepted(self, answer)
        return welcome if len(made) > 1 else welcome._replace(facts={"hostname": "h", "addresses": []})

    monkeypatch.setattr(NodeConnection, "_accepted", without_facts)
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        assert [node.node for node in pool.snapshot().nodes] == [1]
        assert [channel.is_open for channel in made] == [False, True]
