"""Nodes on which no worker can be born: calls settle, with the reason where it does not pass."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from outrider import Local, Pool, TaskKilled, compute
from outrider.engine.events import NodeLost, TaskStarted

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
