"""A connection that breaks, stalls or goes silent: nothing is lost, nothing runs twice, and no living node is given up.

The break is an abort of the connection under a running pool, as a reset by the network is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from outrider import Local, OutriderError, Pool, compute, instance_info
from outrider.engine.client import opening
from outrider.engine.transport import heartbeat, ssh
from outrider.engine.transport.channels import Channel
from outrider.engine.transport.route import UnixRoute
from outrider.engine.transport.ssh import new_key
from outrider.providers.base import EntryPoints, Fleet, LaunchRequest, Machine

pytestmark = pytest.mark.anyio
LARGE_BYTES = 40_000_000
PATIENCE_S = 60.0
QUIET_S, SILENCE_S = heartbeat.QUIET_S / 4, heartbeat.SILENCE_S / 4  # of those that are not a test's


@compute
def mark(directory: str, number: int) -> int:
    """Leave one byte per execution."""
    fd = os.open(f"{directory}/{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"x")
    os.close(fd)
    return number


@compute
def mark_and_hold(directory: str, number: int, gate: str) -> int:
    """The same, and wait for a file."""
    mark.local(directory, number)
    while not Path(gate).exists():
        time.sleep(0.01)
    return number


@compute
def measure(directory: str, data: bytes) -> bytes:
    fd = os.open(f"{directory}/large", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"x")
    os.close(fd)
    return data


@compute
def blocks(n: int) -> Iterator[bytes]:
    for number in range(n):
        yield bytes([number]) * 3_000_000


@compute
def lengths(items: Iterator[bytes]) -> list[tuple[int, int]]:
    return [(item[0], len(item)) for item in items]


@compute
def attempt() -> int:
    return instance_info().attempt


def connections(pool: Pool) -> list[Any]:
    core = pool._opened()
    return [*core.connector._connections.values()]


def cut(pool: Pool) -> None:
    """Break every node's connection under the pool."""
    for each in connections(pool):
        break_off(each._route)


def break_off(route: Any) -> None:
    if isinstance(route, UnixRoute):
        for channel in route._channels or ():
            channel.abort()
    elif route._ssh is not None:
        route._ssh.connection._transport.abort()


def executions(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir()}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


WAYS = {"local": Local(), "without shared memory": Local(shared_memory=False), "as remote": Local(as_remote=True)}


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is not lost while a busy computer keeps it from answering."""
    monkeypatch.setattr(opening, "RECONNECT_S", PATIENCE_S)


@pytest.fixture(params=WAYS.values(), ids=WAYS)
async def two(request: pytest.FixtureRequest, _patient: None) -> AsyncIterator[Pool]:
    async with Pool(provider=request.param, nodes=2, console="silent") as pool:
        yield pool
        assert {node.machine for node in pool.snapshot().nodes} == {f"{pool._opened().id}/n{n}" for n in range(2)}


async def test_results_are_collected_after_a_reconnect(two: Pool, tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    gate = tmp_path / "gate"
    jobs = [two.submit(mark_and_hold(str(marks), number, str(gate))) for number in range(4)]
    await until(lambda: len(executions(marks)) == 2)  # two run, two wait
    for _ in range(3):
        cut(two)
        await until(lambda: all(each._control is not None for each in connections(two)))
    gate.touch()
    assert [await job for job in jobs] == [0, 1, 2, 3]
    assert executions(marks) == {str(number): 1 for number in range(4)}


async def test_small_tasks_in_flight_are_neither_lost_nor_repeated(two: Pool, tmp_path: Path) -> None:
    await two.run(mark(str(tmp_path), 9999))
    jobs = [two.submit(mark(str(tmp_path), number)) for number in range(1500)]
    for part in range(1, 5):
        await until(lambda: len(executions(tmp_path)) > 250 * part)  # noqa: B023 - awaited here
        cut(two)
    assert [await job for job in jobs] == list(range(1500))
    assert set(executions(tmp_path).values()) == {1}


async def test_a_connection_lost_again_while_it_is_opened_costs_no_node(
    two: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    route: Any = type(connections(two)[0]._route)
    opened, broken = route.open_channel, list[Any]()

    async def broken_once(self: Any, channel: Channel) -> None:
        if len(broken) >= 2:
            await opened(self, channel)
            return
        broken.append(self)
        asyncio.get_running_loop().call_soon(break_off, self)
        await opened(self, channel)
        break_off(self)

    job = two.submit(attempt())
    assert await job == 1
    with monkeypatch.context() as patched:
        patched.setattr(route, "open_channel", broken_once)
        cut(two)
        await until(lambda: len(broken) == 2 and all(each._control is not None for each in connections(two)))
    assert [await two.submit(attempt()) for _ in range(4)] == [1] * 4


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("way", ["without shared memory", "as remote"])
async def test_large_transfers_in_flight_start_over(way: str, tmp_path: Path) -> None:
    data = os.urandom(LARGE_BYTES)
    async with Pool(provider=WAYS[way], nodes=1, console="silent") as pool:
        job = pool.submit(measure(str(tmp_path), data))
        await until(lambda: connections(pool)[0].link.objects._placing)
        await asyncio.sleep(0.01)  # some of it is on the way
        cut(pool)
        await until((tmp_path / "large").exists)
        await until(lambda: connections(pool)[0].link._attempts.fetching)
        await asyncio.sleep(0.01)
        cut(pool)
        assert await job == data
        assert executions(tmp_path) == {"large": 1}


async def test_streams_of_large_items_go_on_after_a_reconnect(two: Pool) -> None:
    came = []
    async for item in two.stream(blocks(30)):
        came.append((item[0], len(item)))
        if len(came) in {3, 15}:
            cut(two)
    assert came == [(number, 3_000_000) for number in range(30)]

    async def items() -> AsyncIterator[bytes]:
        for number in range(30):
            if number in {5, 20}:
                cut(two)
            yield bytes([number]) * 3_000_000

    assert await two.run(lengths(items())) == came  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["local", "as remote"])
async def test_a_stall_is_no_death_and_a_longer_one_is(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP of one node's group for three heartbeats, then for good: its task runs elsewhere, and nothing of it is
    left. The time of silence is long at first: a busy computer makes stalls of its own.
    """
    (marks := tmp_path / "marks").mkdir()
    gate = tmp_path / "gate"
    for name, value in {"HEARTBEAT_S": 0.5, "QUIET_S": PATIENCE_S, "SILENCE_S": PATIENCE_S}.items():
        monkeypatch.setattr(heartbeat, name, value)
    async with Pool(provider=WAYS[way], nodes=2, console="silent", boot_timeout=30) as pool:
        machines = {node.node: node for node in pool.snapshot().nodes}
        job = pool.submit(mark_and_hold(str(marks), 1, str(gate)), on=0)
        await until(lambda: executions(marks))
        head = next(node for node in machines.values() if node.rank == 0)
        assert head.facts is not None
        group = int(head.facts["group"])
        os.killpg(group, signal.SIGSTOP)
        await asyncio.sleep(3 * heartbeat.HEARTBEAT_S)
        os.killpg(group, signal.SIGCONT)
        gate.touch()
        assert await job == 1
        assert executions(marks) == {"1": 1}
        assert {node.node for node in pool.snapshot().nodes} == set(machines)

        monkeypatch.setattr(heartbeat, "QUIET_S", QUIET_S)
        monkeypatch.setattr(heartbeat, "SILENCE_S", SILENCE_S)
        os.killpg(group, signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            assert await pool.run(attempt(), on=0) >= 2
        assert head.node not in {node.node for node in pool.snapshot().nodes if node.state == "ready"}
        await until(lambda: not _group_lives(group))


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True)
class Impostor:
    """A local provider whose machines show another host key than the one it announces."""

    inner: Local

    @property
    def name(self) -> str:
        return "impostor"

    @property
    def local(self) -> bool:
        return True

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Fleet]:
        key = new_key().export_public_key().decode().strip()

        async with self.inner.open(pool, entry_points) as fleet:
            launch = fleet.launch

            async def launch_others(request: LaunchRequest, count: int) -> Sequence[Machine]:
                return [replace(machine, host_key=key) for machine in await launch(request, count)]

            fleet.launch = launch_others  # type: ignore[method-assign]
            yield fleet


async def test_a_wrong_host_key_is_refused() -> None:
    with pytest.raises(OutriderError, match="another host key than the one pinned"):
        async with Pool(provider=Impostor(Local(as_remote=True)), nodes=1, console="silent"):
            pytest.fail("a machine with another key was let in")


async def test_a_key_of_anothers_is_not_let_in() -> None:
    async with Pool(provider=Local(as_remote=True), nodes=1, console="silent") as pool:
        machine = connections(pool)[0]._machine
        with pytest.raises(asyncssh.PermissionDenied):
            await ssh.connect(machine, new_key())
