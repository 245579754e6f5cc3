"""Bad input gets a clear error at once, and nothing else is lost by it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import (
    BroadcastFailed,
    Local,
    Nodes,
    NotACall,
    Pool,
    PoolClosed,
    SerializationError,
    SpecError,
    TaskKilled,
    TaskTimeout,
    compute,
    gather,
    instance_info,
)

pytestmark = pytest.mark.anyio


@compute
def double(x: Any) -> Any:
    return x + x


@pytest.fixture(autouse=True)
async def _still_works(pool: Pool) -> Any:
    """Whatever a test did, the pool is as good as before."""
    yield
    assert await pool.broadcast(double(1)) == [2, 2, 2, 2]


async def test_an_unpicklable_argument_is_named_by_its_path(pool: Pool) -> None:
    with pytest.raises(SerializationError, match=r"args\[0\]\['model'\]"):
        await pool.run(double({"model": threading.Lock()}))


async def test_calls_that_run_together_end_when_one_of_them_cannot_be_sent(pool: Pool) -> None:
    @compute
    def hangs(lock: object) -> None:
        time.sleep(600)

    for together in (
        pool.gather(hangs(None), hangs(threading.Lock())),
        anext(pool.stream_group(gather(hangs(None), hangs(threading.Lock()), stream=True))),
    ):
        with pytest.raises(SerializationError):
            await together
    async with asyncio.timeout(60):
        assert await pool.broadcast(double(1)) == [2] * 4, "every slot is free"


@pytest.mark.parametrize("on", [4, 7])
async def test_a_rank_that_no_node_can_have_is_refused(pool: Pool, on: int) -> None:
    with pytest.raises(SpecError, match="the last of 4 has rank 3"):
        await pool.run(double(1), on=on)


async def test_a_task_that_fails_is_run_again_so_often(pool: Pool, tmp_path: Path) -> None:
    tried = str(tmp_path / "tried")

    @compute(max_restarts=2)
    def flaky(name: str, good: int) -> int:
        with Path(tried + name).open("a") as file:
            file.write(".")
        times = Path(tried + name).stat().st_size
        if times == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if times < good:
            raise ValueError(f"try {times}")
        return times

    assert await pool.run(flaky("a", 3)) == 3
    with pytest.raises(ValueError, match="try 3") as caught:
        await pool.run(flaky("b", 9))
    assert caught.value.attempt == 3  # type: ignore[attr-defined]

    @compute(max_restarts=1)
    def once(n: int) -> int:
        with Path(f"{tried}{n}").open("a") as file:
            file.write(".")
        if Path(f"{tried}{n}").stat().st_size == 1:
            raise ValueError(n)
        return n

    assert await pool.map(once, range(5)) == list(range(5))


async def test_an_unpicklable_result_is_named(pool: Pool) -> None:
    @compute
    def lock() -> Any:
        return {"inner": threading.Lock()}

    with pytest.raises(SerializationError, match="inner"):
        await pool.run(lock())


async def test_a_plain_function_is_refused_with_the_fix(pool: Pool) -> None:
    with pytest.raises(NotACall, match="decorate it with @compute"):
        await pool.run(len)  # type: ignore[arg-type]
    with pytest.raises(NotACall, match="was not called"):
        await pool.run(double)  # type: ignore[arg-type]


@pytest.mark.parametrize(("arguments", "said"), [
    ({"nodes": 0}, "at least 1"),
    ({"nodes": (4, 2)}, "less than"),
    ({"node": 4}, "did you mean 'nodes'"),
    ({"console": "loud"}, "console"),
    ({"provider": "aws"}, "provider"),
    ({"on_loss": "ignore"}, "on_loss"),
    ({"plugins": ["torch"]}, "plugin"),
    ({"lease": -1}, "lease"),
])  # fmt: skip
async def test_a_pool_that_cannot_mean_anything_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Pool(**arguments)


async def test_an_unknown_provider_option_is_named() -> None:
    with pytest.raises((TypeError, SpecError), match="sate"):
        Local(sate="/tmp")  # type: ignore[call-arg]
    with pytest.raises(SpecError, match="less than"):
        Nodes(4, min=8)


async def test_an_exception_comes_back_as_itself(pool: Pool) -> None:
    @compute
    def bad() -> None:
        raise LookupError("there is no such thing")

    with pytest.raises(LookupError, match="no such thing") as caught:
        await pool.run(bad())
    assert any("in bad" in note for note in caught.value.__notes__)
    assert caught.value.__cause__ is not None
    assert caught.value.attempt == 1  # type: ignore[attr-defined]
    assert caught.value.rank == 0  # type: ignore[attr-defined]


async def test_an_exception_whose_own_pickle_cannot_be_loaded_arrives(pool: Pool) -> None:
    @compute
    def bad() -> None:
        class Odd(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__(f"{a} and {b}")

            def __reduce__(self) -> tuple[Any, ...]:
                return Odd, (1,)

        raise Odd(1, 2)

    with pytest.raises(Exception, match="1 and 2") as caught:
        await pool.run(bad())
    assert type(caught.value).__name__ == "Odd"


async def test_a_process_that_exits_is_an_error(pool: Pool) -> None:
    @compute
    def leaves() -> None:
        os._exit(3)

    with pytest.raises(TaskKilled, match="exit status 3") as caught:
        await pool.run(leaves())
    assert caught.value.exit_code == 3


async def test_a_segfault_is_an_error(pool: Pool) -> None:
    @compute
    def crashes() -> None:
        ctypes.string_at(0)

    with pytest.raises(TaskKilled, match="SIGSEGV") as caught:
        await pool.run(crashes())
    assert caught.value.signal == signal.SIGSEGV


async def test_running_out_of_memory_is_an_error(pool: Pool) -> None:
    @compute
    def hungry() -> int:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        return len(bytearray(1 << 32))

    with pytest.raises(MemoryError):
        await pool.run(hungry().with_(name="hungry"))

    @compute
    def restore() -> None:
        os._exit(0)  # the limit was this process's

    for node in range(4):
        with pytest.raises(TaskKilled):
            await pool.run(restore(), on=node)


async def test_a_task_that_runs_too_long_is_ended_with_its_children(pool: Pool) -> None:
    seconds = f"4242.{os.getpid()}"  # other processes of this computer may run this test too

    @compute(timeout=0.3)
    def slow() -> None:
        import subprocess
        import time

        subprocess.Popen(["sleep", seconds])
        time.sleep(60)

    with pytest.raises(TaskTimeout, match=r"0\.3 s"):
        await pool.run(slow())
    assert not running(f"sleep\0{seconds}\0")


async def test_printing_a_lot_does_no_harm(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    @compute
    def chatty() -> int:
        for _ in range(200):
            sys.stdout.write("x" * 1_000_000 + "\n")
        return 1

    assert await pool.run(chatty()) == 1
    capfd.readouterr()


@pytest.mark.nightly  # 20 s, and three times as much memory; tests/engine/wire has its sizes
async def test_a_result_of_two_gigabytes_arrives(pool: Pool) -> None:
    @compute
    def huge() -> bytes:
        return bytes(2_200_000_000)

    result = await pool.run(huge())
    assert len(result) == 2_200_000_000
    assert not any(result[::100_000_000])


async def test_a_broadcast_streams_no_argument(pool: Pool) -> None:
    @compute
    def total(items: Iterator[int]) -> int:
        return sum(items)

    with pytest.raises(SpecError, match="which one task alone can consume"):
        await pool.broadcast(total(iter(range(40))))


async def test_a_broadcast_shows_every_ranks_outcome(pool: Pool) -> None:
    @compute
    def picky() -> int:
        rank = instance_info().rank
        if rank == 2:
            raise ValueError("not two")
        return rank

    with pytest.raises(BroadcastFailed) as caught:
        await pool.broadcast(picky())
    (error,) = caught.value.exceptions
    assert isinstance(error, ValueError)
    assert error.rank == 2  # type: ignore[attr-defined]
    assert [outcome.result() for outcome in caught.value.outcomes if outcome.rank != 2] == [0, 1, 3]


async def test_a_pool_after_its_end_says_so() -> None:
    async with Pool(console="silent") as pool:
        stream_before = pool.events()
    with pytest.raises(PoolClosed, match="has ended"):
        await pool.run(double(1))
    with pytest.raises(PoolClosed, match="has ended"):
        pool.submit(double(1))
    with pytest.raises(SpecError, match="another Pool"):
        async with pool:
            pass
    assert [type(event).__name__ async for event in stream_before][-1] == "PoolClosed"


def running(command: str) -> bool:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/cmdline") as file:  # noqa: PTH123
                    if command in file.read():
                        return True
            except OSError:
                pass
    return False
