"""Nodes on which no worker can be started: calls settle, with the reason where it does not pass."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from outrider import CapacityError, Local, NodeLost, Plugin, Pool, TaskKilled, compute
from outrider.actors import events
from outrider.actors.fleet_controller import UNFIT_NODES
from outrider.engine.api.plugin import NodeSide, Setup

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


@compute
def fork_server() -> int:
    return os.getppid()


@compute(retries=1)
def ends_its_node() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


@dataclass(frozen=True)
class Blocks(Plugin):
    """On its nodes no worker can be started any more."""

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


@compute(timeout=120, queue_timeout=120)
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
            starts += isinstance(event, events.TaskStarted)
            if isinstance(event, events.NodeLost):
                break
        assert "no worker could be started there, 5 times in a row (FileExistsError" in event.cause
        assert starts == 2  # not one for each try


async def test_where_no_node_can_start_a_worker_a_call_fails_with_the_cause_and_no_more_nodes_come():
    async with asyncio.timeout(120), Pool(provider=Local(), nodes=1, plugins=[Blocks()], console="silent") as pool:
        seen = pool.events()
        with pytest.raises(CapacityError, match=r"no worker could be started there, .*FileExistsError") as caught:
            await pool.run(cube(3))
        assert "none of several nodes in a row could start a worker" in str(caught.value.__cause__)
        with pytest.raises(CapacityError, match="FileExistsError"):
            await pool.run(cube(3))
        assert pool.snapshot().nodes == ()
    assert [isinstance(event, events.NodeLost) async for event in seen].count(True) == UNFIT_NODES


async def test_nodes_that_have_run_something_are_replaced_however_many_are_lost_in_a_row():
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        seen = pool.events()
        for _ in range(UNFIT_NODES + 1):
            os.kill(await pool.run(fork_server()), signal.SIGKILL)
            async for event in seen:  # its worker may outlive it for a moment, and run another task
                if isinstance(event, events.NodeLost):
                    break
            assert await pool.run(square(3)) == 9


async def test_so_are_those_that_were_lost_in_the_middle_of_their_first_task():
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        for _ in range(UNFIT_NODES):
            with pytest.raises(NodeLost):
                await pool.run(ends_its_node())
        assert await pool.run(square(3)) == 9
