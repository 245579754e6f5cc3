"""Tasks that need processors, memory or accelerators of their node, on real local nodes."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outrider import Local, Pool, SpecError, TaskKilled, Worker, compute
from outrider.engine.api.plugin import Plugin
from outrider.providers.local import computer
from outrider.providers.shared.nvidia_smi import Device

pytestmark = pytest.mark.anyio
MB = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def _accelerators() -> Iterator[None]:
    """This computer seems to have four accelerators, which pools divide among their nodes."""

    async def find_devices() -> list[Device]:
        return [Device(number, f"GPU-{number}", "H100", 80.0) for number in range(4)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computer, "find_devices", find_devices)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        patch.delenv("MKL_NUM_THREADS", raising=False)
        yield


@pytest.fixture(scope="module")
async def pool(_accelerators: None) -> AsyncIterator[Pool]:
    async with Pool(provider=Local(), worker=Worker(concurrency=6), console="silent") as pool:
        yield pool


@compute
def environment(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


@compute(memory_gb=0.25)
def takes(megabytes: int, *, in_child: bool = False, seconds: float = 60.0) -> int:
    if in_child and os.fork():
        os.wait()
        return 0
    held = bytearray(os.urandom(1000) * (1000 * megabytes))
    time.sleep(seconds)
    return len(held)


async def test_a_task_that_holds_more_than_its_memory_is_ended_and_told_so(pool: Pool) -> None:
    with pytest.raises(
        TaskKilled, match=r"used 0\.\d+ GB of its memory_gb=0\.25 and was ended.*memory_gb=0\.\d"
    ) as caught:
        await pool.run(takes(400))
    assert caught.value.out_of_memory
    assert await pool.run(takes(50, seconds=0.3)) == 50 * MB


async def test_what_it_has_started_counts_and_is_ended_too(pool: Pool) -> None:
    with pytest.raises(TaskKilled, match=r"its memory_gb=0\.25"):
        await pool.run(takes(400, in_child=True))


async def test_other_tasks_of_the_node_are_unharmed(pool: Pool) -> None:
    beside = pool.submit(takes(50, seconds=1.0))
    with pytest.raises(TaskKilled):
        await pool.run(takes(400))
    assert await beside == 50 * MB


async def test_a_task_sees_devices_of_its_own_alone(pool: Pool, tmp_path: Path) -> None:
    """Three hold one each and a fourth would need two: it waits."""

    @compute(gpus=1)
    def holds(name: str) -> str:
        (tmp_path / name).touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    jobs = [pool.submit(holds(str(number))) for number in range(3)]
    while len([*tmp_path.iterdir()]) < 3:
        await pool.run(environment())
    two = pool.submit(holds.with_(gpus=2)("two"))
    await pool.run(environment())
    assert not (tmp_path / "two").exists()
    (tmp_path / "go").touch()
    assert sorted([await job for job in jobs]) == ["0", "1", "2"]
    assert len((await two).split(",")) == 2
    assert await pool.run(environment("CUDA_VISIBLE_DEVICES")) == ["0,1,2,3"]


async def test_libraries_are_told_how_many_threads_to_start(pool: Pool) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    assert await pool.run(environment.with_(cpus=1)(*names)) == ["1", "1"]
    assert await pool.run(environment(*names)) == [None, None]


async def test_a_task_that_no_node_can_hold_is_refused_at_once(pool: Pool) -> None:
    with pytest.raises(
        SpecError, match=r"environment was not run: it needs gpus=5, and the nodes have cpus=.*gpus=4\."
    ):
        await pool.run(environment.with_(gpus=5)())
    with pytest.raises(SpecError, match="environment cannot be broadcast: a rank needs gpus=5 on every node"):
        await pool.broadcast(environment.with_(gpus=5)())
    with pytest.raises(SpecError, match="it needs gpus=5"):
        await pool.map(environment.with_(gpus=5), ["PATH"])


async def test_each_rank_of_a_broadcast_has_the_amounts() -> None:
    @compute(gpus=2, cpus=0.5)
    def own() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    async with Pool(provider=Local(), plugins=[_TwoRanks()], console="silent") as pool:
        assert sorted(await pool.broadcast(own())) == ["0,1", "2,3"]
        with pytest.raises(SpecError, match=r"2 ranks with cpus=0\.5, gpus=3 each need cpus=1, gpus=6 on"):
            await pool.broadcast(own.with_(gpus=3)())


class _TwoRanks(Plugin):
    name = "two"

    def ranks_per_node(self, facts: object) -> int:
        return 2


async def test_items_of_a_map_have_the_amounts_of_the_function(pool: Pool) -> None:
    @compute(gpus=1)
    def devices_of(_: int) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    assert {each for each in await pool.map(devices_of, range(8)) if each is not None} <= {"0", "1", "2", "3"}


async def test_a_generator_holds_its_amounts_until_it_has_ended(pool: Pool) -> None:
    @compute(gpus=4)
    def numbers() -> Iterator[int]:
        yield from range(3)

    assert [number async for number in pool.stream(numbers())] == [0, 1, 2]
    assert await pool.run(environment.with_(gpus=4)("CUDA_VISIBLE_DEVICES")) == ["0,1,2,3"]


async def test_a_plugin_that_divides_devices_and_gpus_are_refused_together() -> None:
    @compute(gpus=1)
    def see() -> None: ...

    async with Pool(provider=Local(), plugins=[_Divides()], console="silent") as pool:
        with pytest.raises(SpecError, match="plugin says which device each task of a node sees, and so does gpus=1"):
            await pool.run(see())


class _Divides(Plugin):
    name = "divides"
    shares_devices = True


async def test_in_a_pool_of_threads_it_has_a_process_of_its_own() -> None:
    @compute
    def process() -> int:
        return os.getpid()

    async with Pool(provider=Local(), worker=Worker(concurrency=2, kind="thread"), console="silent") as pool:
        shared = await pool.run(process())
        with pytest.raises(TaskKilled):
            await pool.run(takes(400))
        assert await pool.run(process.with_(memory_gb=1)()) != shared
        assert await pool.run(process()) == shared


async def test_nodes_on_one_computer_have_a_share_of_it_each() -> None:
    @compute
    def nothing() -> None: ...

    cpus = len(os.sched_getaffinity(0))
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        await pool.run(nothing.with_(cpus=cpus)())
    share = max(1, cpus // 2)
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        await pool.run(nothing.with_(cpus=share)())
        with pytest.raises(SpecError, match=f"it needs cpus={share + 1}, and the nodes have cpus={share},"):
            await pool.run(nothing.with_(cpus=share + 1)())


@compute(memory_gb=1e-6)
def rest() -> None:
    time.sleep(60)


async def test_a_limit_below_what_an_empty_process_holds_is_told_as_such() -> None:
    """Such a process may be ended before it has read its task, which must not be tried again on node after node."""
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        for _ in range(6):
            with pytest.raises(TaskKilled, match=r"of its memory_gb=1e-06"):
                await pool.run(rest())
        assert pool.snapshot().ready == 1
