"""Short of descriptors: each call ends with its value or with one typed error, and all works again once there are some.

The limits are put on processes that run already, which raise theirs when they start and never again. (The soft ones:
only who has CAP_SYS_RESOURCE could give a hard one back.)
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from outrider import CapacityError, Local, OutriderError, Pool, SerializationError, compute
from outrider.engine.node import process

pytestmark = pytest.mark.anyio

LIMITS = (12, 96, *(pytest.param(limit, marks=pytest.mark.nightly) for limit in (40, 256, 512)))
PLACES = ("supervisor", "fork server", "executor", "SSH server", "worker")
CALLS = 48  # each with a descriptor at its node, at its worker, and at its client
LARGE = 100_000
PATIENCE_S = 100.0


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[Pool]:
    async with Pool(provider=Local(), nodes=2, console="silent", replace_timeout=4) as pool:
        yield pool


@pytest.fixture(scope="module")
async def as_remote() -> AsyncIterator[Pool]:
    async with Pool(provider=Local(as_remote=True), nodes=2, console="silent", replace_timeout=4) as pool:
        yield pool


@compute
def fork_server() -> int:
    return os.getppid()


@compute
def worker() -> int:
    return os.getpid()


@compute
def swap(data: bytes, size: int) -> bytes:
    assert data == b"q" * len(data)
    return b"r" * size


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _processes(pool: Pool, place: str) -> Sequence[int]:
    """Of both nodes."""
    async with asyncio.timeout(PATIENCE_S):
        servers = await pool.broadcast(fork_server())
        if place == "fork server":
            return servers
        if place == "worker":
            return await pool.broadcast(worker())
    supervisor = _parent(servers[0])
    if place == "supervisor":
        return [supervisor]
    executors = {int(node.facts["pid"]) for node in pool.snapshot().nodes if node.facts}
    if place == "executor":
        return list(executors)
    return [*set(process.children(supervisor)) - executors - set(servers)]


@contextmanager
def _limited(pids: Sequence[int], limit: int) -> Iterator[None]:
    before: dict[int, tuple[int, int]] = {}
    for pid in pids:
        with suppress(ProcessLookupError):  # one of a node that was lost in the test before ends only now
            before[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[pid][1]))
    assert before
    try:
        yield
    finally:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):  # it ended, and others are in its place
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


async def _settled(pool: Pool) -> list[object]:
    """What becomes of calls whose arguments and results travel as descriptors, and of a broadcast."""
    calls = [pool.run(swap(b"q" * LARGE, LARGE)) for _ in range(CALLS)]
    calls += [pool.run(swap(b"q", LARGE)) for _ in range(CALLS)]
    calls += [pool.run(swap(b"q", 1)) for _ in range(CALLS)]
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*calls, pool.broadcast(swap(b"q" * LARGE, LARGE)), return_exceptions=True)


def _check(outcomes: Sequence[object]) -> None:
    *results, ranks = outcomes
    sizes = [LARGE] * (2 * CALLS) + [1] * CALLS
    for outcome, size in zip(results, sizes, strict=True):
        assert outcome == b"r" * size or isinstance(outcome, OutriderError), repr(outcome)[:500]
        assert not isinstance(outcome, SerializationError), outcome  # nothing was wrong with what they pickle
    right = isinstance(ranks, list) and all(rank == b"r" * LARGE for rank in ranks)
    assert right or isinstance(ranks, OutriderError | ExceptionGroup), repr(ranks)[:500]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("place", PLACES)
async def test_calls_settle_where_nodes_lack_descriptors(local: Pool, as_remote: Pool, place: str, limit: int):
    pool = as_remote if place == "SSH server" else local
    victim = (await _processes(pool, "fork server"))[1]
    with _limited(await _processes(pool, place), limit):
        if place == "supervisor":  # which has nothing to do unless a node is to be replaced
            os.kill(victim, signal.SIGKILL)
        _check(await _settled(pool))
    async with asyncio.timeout(PATIENCE_S):
        while not await _works(pool):  # where nodes were lost and launches failed, the next launch comes after a pause
            await asyncio.sleep(0.1)


async def _works(pool: Pool) -> bool:
    try:
        whole = await pool.run(swap(b"q" * LARGE, LARGE)) == b"r" * LARGE
        return whole and await pool.broadcast(swap(b"q", 1)) == [b"r", b"r"]
    except CapacityError:
        return False


CLIENT = f"""
import asyncio, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_descriptors import _check, _limited, _settled, swap, LARGE
from outrider import CapacityError, Local, Pool
import os

async def main():
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        await pool.run(swap(b"q", 1))
        with _limited([os.getpid()], int(sys.argv[1])):
            _check(await _settled(pool))
        assert await pool.run(swap(b"q" * LARGE, LARGE)) == b"r" * LARGE
    print("all settled")

asyncio.run(main())
"""


@pytest.mark.parametrize("limit", LIMITS)
def test_calls_settle_where_the_client_lacks_them(limit: int):
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(limit)], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.stdout == "all settled\n", done.stderr[-3000:]
