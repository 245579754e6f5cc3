"""Nodes on which no worker can be born: calls settle, with the reason where it does not pass."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from outrider import CapacityError, Local, Plugin, Pool, TaskKilled, compute
from outrider.actors.events import NodeLost, TaskStarted
from outrider.actors.fleet import UNFIT_NODES
from outrider.engine.plugins.sides import NodeSide, Setup

pytestmark = pytest.mark.anyio


@compute
def tidy() -> None:
    shutil.rmtree(Path.cwd())


@compute
def block() -> None:
    folder = Path.cwd()
    folder.rmdir()
    folder.touch()


@compute
def leave() -> None:
    os._exit(7)


@dataclass(frozen=True)
class Blocks(Plugin):
    """On its nodes no worker can be born any more."""

    name: ClassVar[str] = "blocks"
    fresh_process: ClassVar[bool] = True

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:
        side.directory.rmdir()
        side.directory.touch()
        yield Setup()


@compute
def cube(x: int) -> int:
    return x**3


@compute(timeout=30, queue_timeout=30)
def square(x: int) -> int:
    return x * x


async def test_a_task_that_removes_its_folder_harms_no_later_one():
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        await pool.run(tidy())
        with pytest.raises(TaskKilled):
            await pool.run(leave())
        assert await pool.run(square(3)) == 9
        assert pool.snapshot().nodes[0].node == 0


async def test_a_node_that_can_start_no_worker_is_replaced_and_says_why():
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        seen = pool.events()
        await pool.run(block())
        with pytest.raises(TaskKilled):
            await pool.run(leave())
        assert await pool.run(square(3)) == 9
        starts = 0
        async for event in seen:
            starts += isinstance(event, TaskStarted)
            if isinstance(event, NodeLost):
                break
        assert "no worker could be started there, 5 times in a row (FileExistsError" in event.cause
        assert starts == 2  # not one for each try


async def test_where_no_node_can_start_a_worker_a_call_fails_with_the_cause_and_no_more_nodes_come():
    async with asyncio.timeout(120), Pool(provider=Local(), nodes=1, plugins=[Blocks()], console="silent") as pool:
        seen = pool.events()
        with pytest.raises(CapacityError, match=r"no worker could be started there, .*FileExistsError") as caught:
            await pool.run(cube(3))
        assert "none could start a worker" in str(caught.value.__cause__)
        with pytest.raises(CapacityError, match="FileExistsError"):
            await pool.run(cube(3))
        assert pool.snapshot().nodes == ()
    assert [isinstance(event, NodeLost) async for event in seen].count(True) == UNFIT_NODES
