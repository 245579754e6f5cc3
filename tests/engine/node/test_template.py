"""Workers that come from a process which has imported what they use are the fork server's, like any others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import forkserver, process, template
from outrider.engine.plugins.torch import Torch
from outrider.engine.wire import messages as m
from outrider.engine.wire.messages import Cause, RunFlag

pytestmark = pytest.mark.anyio

HEAVY = """
import os, time
from pathlib import Path
folder = Path(__file__).parent
with (folder / "imported").open("a") as file:
    file.write(f"{os.getpid()}\\n")
while (folder / "wait").exists():
    time.sleep(0.001)
if (folder / "fail").exists():
    raise RuntimeError("no library today")
pid = os.getpid()
"""


class Heavy:
    """A module that takes long to import, and says who did."""

    def __init__(self, folder: Path) -> None:
        (folder / "heavy_here.py").write_text(HEAVY)
        self._folder = folder
        self.options = {"preload": ["heavy_here"], "env": {"PYTHONPATH": str(folder)}}

    @property
    def importers(self) -> list[int]:
        path = self._folder / "imported"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait(self) -> None:
        (self._folder / "wait").touch()

    def go_on(self) -> None:
        (self._folder / "wait").unlink()

    def fail(self) -> None:
        (self._folder / "fail").touch()


@pytest.fixture
def heavy(tmp_path: Path) -> Heavy:
    folder = tmp_path / "modules"
    folder.mkdir()
    return Heavy(folder)


def where() -> tuple[int, int, bool]:
    """The process, its parent, and whether it had the module before."""
    return os.getpid(), os.getppid(), "heavy_here" in sys.modules


def imported() -> int:
    import heavy_here  # type: ignore[import-not-found]

    pid: int = heavy_here.pid
    return pid


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_a_worker_has_it_and_is_the_fork_servers_child(make: Callable[..., Any], heavy: Heavy) -> None:
    client = await make(slots=2, **heavy.options)
    first = await client.call(where)
    ended = await client.call(die)
    assert (ended.cause, ended.code) == (Cause.SIGNAL, signal.SIGKILL)
    second = await client.call(where, flags=RunFlag.FRESH)
    assert first[2]
    assert second[2]
    assert first[1] == second[1] != await client.call(imported)
    assert len(heavy.importers) == 1
    assert heavy.importers[0] in process.children(first[1])


async def test_threads_have_it_too(make: Callable[..., Any], heavy: Heavy) -> None:
    client = await make(slots=2, kind="thread", **heavy.options)
    assert (await client.call(where))[2]


async def test_what_cannot_be_imported_is_left_to_the_task(make: Callable[..., Any], heavy: Heavy) -> None:
    heavy.fail()
    client = await make(**heavy.options)
    assert not (await client.call(where))[2]
    failed = await client.call(imported)
    assert isinstance(failed, m.Failed)
    assert len(heavy.importers) == 2


async def test_what_is_not_there_is_left_to_the_task(make: Callable[..., Any]) -> None:
    client = await make(preload=["no_such_module_here"])
    assert not (await client.call(where))[2]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be asked for before `make`, which forks."""
    monkeypatch.setattr(forkserver, "IMPORT_S", 0.5)


async def test_nobody_waits_for_an_import_that_hangs(impatient: None, make: Callable[..., Any], heavy: Heavy) -> None:
    heavy.wait()
    client = await make(**heavy.options)
    assert not (await client.call(where))[2]
    assert not (await client.call(where, flags=RunFlag.FRESH))[2]


async def test_what_waits_for_it_can_be_killed(make: Callable[..., Any], heavy: Heavy) -> None:
    heavy.wait()
    client = await make(**heavy.options)
    waiting = client.run(where)
    client.send(m.Kill(waiting))
    assert isinstance(await client.answer(waiting), m.Ended)
    heavy.go_on()
    assert (await client.call(where))[2]
    assert len(heavy.importers) == 1


async def test_a_node_can_end_while_it_imports(make: Callable[..., Any], heavy: Heavy) -> None:
    heavy.wait()
    client = await make(**heavy.options)
    client.run(where)
    await client.until(lambda: client.heard)
    while not heavy.importers:
        await client.turn()


async def test_without_it_workers_come_from_the_fork_server(make: Callable[..., Any], heavy: Heavy) -> None:
    client = await make(**heavy.options)
    before = await client.call(where)
    os.kill(heavy.importers[0], signal.SIGKILL)
    after = await client.call(where, flags=RunFlag.FRESH)
    assert before[1] == after[1]
    assert not after[2]
    assert await client.call(imported, flags=RunFlag.FRESH) != heavy.importers[0]


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process between a template's two forks is killed. To be asked for before `make`, which forks."""
    monkeypatch.setattr(template._Server, "_fork_again", lambda *_: os.kill(os.getpid(), signal.SIGKILL))


async def test_nor_when_what_it_forks_is_killed_halfway(halved: None, make: Callable[..., Any], heavy: Heavy) -> None:
    client = await make(**heavy.options)
    first = await client.call(where)
    second = await client.call(where, flags=RunFlag.FRESH)
    assert first[1] == second[1]
    assert not first[2]
    assert not second[2]
    assert heavy.importers[0] not in process.children(first[1])


async def test_what_a_worker_leaves_behind_is_ended(make: Callable[..., Any], heavy: Heavy) -> None:
    def leaves_a_daemon() -> None:
        if os.fork() == 0:
            os.setsid()
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)

    client = await make(**heavy.options)
    parent = (await client.call(where))[1]
    await client.call(leaves_a_daemon)
    worker, again, _ = await client.call(where)
    assert again == parent
    assert set(process.children(parent)) == {worker, heavy.importers[0]}


async def test_a_killed_fork_server_takes_it_along(make: Callable[..., Any], heavy: Heavy) -> None:
    def wait_for(parent: int, *children: int) -> None:
        os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)  # then its children are ours
        for pid in children:
            os.waitpid(pid, 0)

    client = await make(**heavy.options)
    worker, parent, _ = await client.call(where)
    os.kill(parent, signal.SIGKILL)
    await asyncio.to_thread(wait_for, parent, worker, heavy.importers[0])


async def test_random_numbers_differ(make: Callable[..., Any]) -> None:
    def draw() -> tuple[float, float, float]:
        import random

        import numpy as np
        import torch

        return float(np.random.random()), random.random(), torch.rand(1).item()

    client = await make(preload=["numpy.random", "torch"])
    drawn = [await client.call(draw, flags=RunFlag.FRESH) for _ in range(3)]
    assert len({number for numbers in drawn for number in numbers}) == 9


async def test_an_optimizer_finds_what_it_needs_and_no_gpu_was_touched(
    make: Callable[..., Any],
) -> None:
    def step() -> tuple[bool, bool, list[str]]:
        import sys

        import torch

        touched = torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()  # type: ignore[attr-defined]
        weight = torch.nn.Parameter(torch.ones(1))
        before = {*sys.modules}
        optimizer = torch.optim.Adam([weight])
        weight.sum().backward()
        optimizer.step()
        return *touched, [each for each in {*sys.modules} - before if "dynamo" in each]

    client = await make(preload=Torch.preload)
    assert await client.call(step, flags=RunFlag.FRESH) == (False, False, [])
