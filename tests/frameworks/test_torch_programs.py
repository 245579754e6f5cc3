"""Programs that set their process group up themselves, as they are: functions, scripts, and processes of both."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Plugin, Pool, compute, plugins

pytestmark = pytest.mark.anyio

PROGRAM = str(Path(__file__).with_name("torchrun_program.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@compute
def reduced() -> tuple[int, float]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(os.environ["RANK"]) + 1])
    dist.all_reduce(total)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return rank, total.item()


@compute
def left_open() -> int:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_world_size()


@compute
def run_here(*arguments: str) -> str:
    before, printed = sys.argv, StringIO()
    sys.argv = [PROGRAM, *arguments]
    try:
        with redirect_stdout(printed):
            runpy.run_path(PROGRAM, run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


@compute
def run_beside(*arguments: str) -> str:
    return subprocess.run([sys.executable, PROGRAM, *arguments], stdout=subprocess.PIPE, check=True, text=True).stdout


def loss(printed: str) -> float:
    word, value = printed.split()
    assert word == "loss"
    return float(value)


async def test_a_program_for_torchrun_gives_its_loss_in_a_broadcast() -> None:
    expected = loss(subprocess.run([*TORCHRUN, PROGRAM, "--steps", "7"], stdout=-1, check=True, text=True).stdout)
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        assert await pool.broadcast(reduced()) == [(0, 3.0), (1, 3.0)]
        for run in (run_here, run_beside):
            first, second = await pool.broadcast(run("--steps", "7"))
            assert (loss(first), second) == (pytest.approx(expected, abs=1e-6), "")


@pytest.mark.parametrize("plugin", [plugins.torch(), plugins.accelerate()], ids=lambda plugin: plugin.name)
async def test_with_a_plugin_the_same_function_finds_its_group(plugin: Plugin) -> None:
    async with Pool(provider=Local(), nodes=2, plugins=[plugin], console="silent") as pool:
        assert await pool.broadcast(reduced()) == [(0, 3.0), (1, 3.0)]


async def test_a_function_need_not_take_down_a_group_that_it_made() -> None:
    async with Pool(provider=Local(), nodes=2, plugins=[plugins.torch(init=False)], console="silent") as pool:
        assert [await pool.broadcast(left_open()) for _ in range(2)] == [[2, 2], [2, 2]]
        assert await pool.run(left_open()) == 1


async def test_ranks_of_one_node_have_their_own_numbers() -> None:
    async with Pool(provider=Local(), plugins=[plugins.torch(ranks_per_node=2, init=False)], console="silent") as pool:
        values: list[Any] = await pool.broadcast(reduced())
    assert values == [(0, 3.0), (1, 3.0)]
