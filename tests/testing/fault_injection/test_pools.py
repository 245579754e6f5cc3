"""Each fault on a real pool: what it must survive it survives, and what can be put back is put back."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider import (
    BroadcastFailed,
    Local,
    Pool,
    SpecError,
    checkpoint,
    compute,
    instance_info,
    preemption,
    should_stop,
)
from outrider.engine.node import context
from outrider.engine.transport import heartbeat
from outrider.testing.fake_provider import Fake
from outrider.testing.fault_injection import injection, processes
from outrider.testing.fault_injection.chaos import chaos
from outrider.testing.fault_injection.check import Disturbance
from outrider.testing.fault_injection.faults import (
    Fault,
    Freeze,
    FullDisk,
    HoldGil,
    Kill,
    KillDaemon,
    KillRank,
    Partition,
    Preempt,
    SlowLink,
)
from outrider.testing.fault_injection.options import Chaos
from outrider.testing.fault_injection.plan import timed

pytestmark = pytest.mark.anyio

NODES = 2


@compute(on_loss="restart")
def steps(number: int, pause_s: float = 0.005) -> tuple[int, int]:
    for _ in range(number):
        should_stop()
        time.sleep(pause_s)
    return instance_info().generation, instance_info().rank


@compute(on_loss="restart")
def until(path: str) -> int:
    while not Path(path).exists():
        should_stop()
        time.sleep(0.01)
    return instance_info().generation


def broken(fault: Fault) -> Pool:
    return Pool(nodes=NODES, console="silent", chaos=Chaos(None, faults=[fault]))


@pytest.mark.parametrize("rank", range(NODES))
@pytest.mark.parametrize("kind", [Kill, KillDaemon])
async def test_a_rank_that_is_lost_at_a_step_is_replaced(kind: type[Fault], rank: int) -> None:
    async with broken(kind(rank=rank, at_step=20)) as pool:
        assert await pool.broadcast(steps(40)) == [(2, 0), (2, 1)]
        report = pool.chaos
    (strike,) = report.strikes
    assert (strike.kind, strike.rank, strike.step) == (kind.kind, rank, 20)
    assert [lost.node for lost in report.losses] == [strike.node]
    assert len(report.recoveries_s) == len(report.seen_s) == 1
    assert {(made.rank, made.steps) for made in report.step_counts if made.generation == 2} == {(0, 40), (1, 40)}


@compute(on_loss="restart")
def notices() -> list[tuple[int, bool]]:
    """At which of 30 steps a notice is pending, after a first one that waits for the second generation's start."""
    told = []
    for step in range(1, 31):
        should_stop()
        told.append((step, preemption() is not None))
    deadline = time.monotonic() + 60
    while instance_info().generation == 1:
        assert time.monotonic() < deadline, "the machine lives on"
        time.sleep(0.01)
    return told


async def test_a_notice_is_there_when_its_step_goes_on_and_its_machine_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(injection, "NOTICED_S", 60.0)
    async with broken(Preempt(0.5, rank=1, at_step=20)) as pool:
        assert len(await pool.broadcast(notices())) == NODES
        report = pool.chaos
    (strike,) = report.strikes
    assert strike.noticed_at is not None
    assert strike.over_at is not None
    assert strike.over_at - strike.noticed_at >= 0.5
    assert report.losses[0].noticed


async def test_the_notice_of_a_step_is_seen_by_the_step() -> None:
    async with broken(Preempt(60, rank=0, at_step=20)) as pool:
        told = await pool.run(notices_alone())
    assert told == [(step, step >= 20) for step in range(1, 31)]


@compute
def notices_alone() -> list[tuple[int, bool]]:
    told = []
    for step in range(1, 31):
        should_stop()
        told.append((step, preemption() is not None))
    return told


@pytest.mark.parametrize("fault", [HoldGil(1, at_step=5), SlowLink(1, at_step=5), Freeze(1, at_step=5)])
async def test_faults_without_loss_lose_no_node(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_S", "SILENCE_S"):  # on a busy computer a second of them lasts longer
        monkeypatch.setattr(heartbeat, name, 600.0)
    async with broken(fault) as pool:
        assert await pool.broadcast(steps(40)) == [(1, 0), (1, 1)]
        report = pool.chaos
    assert len(report.strikes) == 1
    assert report.losses == []


async def test_a_held_gil_holds_all_threads_of_the_task_and_ends_with_the_chaos() -> None:
    async with Pool(nodes=1, console="silent") as pool:
        async with chaos(pool, None, faults=[HoldGil(600, at_step=3)]) as report:
            job = pool.submit(ticks())
            while not report.strikes:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)  # that long nobody ticks
        assert await job >= 0.9


@compute
def ticks() -> float:
    """The longest pause of a second thread while this one makes steps."""
    import threading

    seen = [time.monotonic()]
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.005):
            seen.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(100):
        should_stop()
        time.sleep(0.002)
    over.set()
    thread.join()
    return max(after - before for before, after in pairwise(seen))


async def test_killed_ranks_are_run_again_where_that_was_asked_for() -> None:
    async with broken(KillRank(rank=1, at_step=20)) as pool:
        assert await pool.broadcast(steps.with_(max_restarts=1)(40)) == [(2, 0), (2, 1)]
        assert pool.chaos.losses == []
    async with broken(KillRank(rank=1, at_step=20)) as pool:
        with pytest.raises(BroadcastFailed):
            await pool.broadcast(steps(40))


@pytest.mark.parametrize("as_remote", [False, True], ids=["local", "as remote"])
async def test_a_partition_that_is_short_loses_nothing_and_a_long_one_is_seen(
    tmp_path: Path, as_remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of silence is long at first: a busy computer makes stalls of its own."""
    quiet_s, silence_s = heartbeat.QUIET_S / 4, heartbeat.SILENCE_S / 4
    for name, value in {"HEARTBEAT_S": 0.5, "QUIET_S": 60.0, "SILENCE_S": 60.0}.items():
        monkeypatch.setattr(heartbeat, name, value)
    async with Pool(provider=Local(as_remote=as_remote), nodes=NODES, console="silent") as pool:
        running = asyncio.ensure_future(pool.broadcast(until(str(tmp_path / "go"))))
        async with chaos(pool, mtbf=0.1, faults=[Partition(1.5)], most=1) as report:
            while not report.strikes or report.strikes[0].over_at is None:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(heartbeat, "QUIET_S", quiet_s)
        monkeypatch.setattr(heartbeat, "SILENCE_S", silence_s)
        async with chaos(pool, mtbf=0.1, faults=[Partition(600)], rank=0, most=1) as later:
            while not {lost.node for lost in later.losses} & {strike.node for strike in later.strikes}:
                await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        first, second = await running
        assert first == second >= 2  # a busy computer may lose the other node too
    assert report.losses == []
    assert len(later.strikes) == 1


async def test_leaving_puts_back_what_was_frozen_noticed_and_slowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUIET_S", "SILENCE_S"):  # on a busy computer it is frozen for longer than that
        monkeypatch.setattr(heartbeat, name, 600.0)
    async with Pool(nodes=NODES, console="silent") as pool:
        running = asyncio.ensure_future(pool.broadcast(until(str(tmp_path / "go"))))
        async with chaos(pool, mtbf=0.05, faults=[Freeze(60), SlowLink(60), Preempt(60)], most=3) as report:
            while len(report.strikes) < 3:
                await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        assert await running == [1, 1]
        while any(node.state != "ready" for node in pool.snapshot().nodes):
            await asyncio.sleep(0.01)
        for node in pool.snapshot().nodes:
            assert node.facts is not None
            group = processes.owned(int(node.facts["group"]))
            assert group is not None
            assert not (Path(node.facts["directory"]) / "preempt").exists()
        assert await pool.broadcast(steps(1)) == [(1, 0), (1, 1)]


async def test_injected_faults_are_the_planned_ones() -> None:
    plan = Chaos(0.3, seed=5, faults=["kill", "daemon"], most=3)
    async with Pool(nodes=NODES, console="silent", chaos=plan) as pool:
        while len(pool.chaos.strikes) < 3:
            await asyncio.sleep(0.01)
    happened = {strike.number: strike.kind for strike in pool.chaos.strikes}
    assert len(happened) == 3
    planned = islice(timed(plan), max(happened))
    assert [each.fault.kind for each in planned if each.number in happened] == list(happened.values())


@compute
def saves(root: str, ask: bool, save: bool) -> int:
    saved = checkpoint("run", root=root, every=10)
    counted: list[str] = []
    task = context.current()
    assert task is not None
    context.on_step[task] = counted.append
    for step in range(1, 31):
        if ask:
            should_stop()
        if save:
            saved.save(step, step)
        saved.due(step)
    del context.on_step[task]
    return max(counted.count(kind) for kind in set(counted))


@pytest.mark.parametrize(("ask", "save"), [(True, False), (False, True), (True, True)])
async def test_a_loop_counts_once_each_time_round(ask: bool, save: bool, tmp_path: Path) -> None:
    async with Pool(nodes=1, console="silent") as pool:
        assert await pool.run(saves(str(tmp_path), ask, save)) == 30


async def test_a_pool_that_is_left_by_a_cancellation_is_gone_with_its_chaos() -> None:
    with anyio.CancelScope() as scope:
        async with Pool(nodes=NODES, console="silent", chaos=Chaos(600)) as pool:
            groups = [int(node.facts["group"]) for node in pool.snapshot().nodes if node.facts is not None]
            scope.cancel()
            await anyio.sleep(600)
    assert scope.cancelled_caught
    assert len(groups) == NODES
    assert [processes.owned(group) for group in groups] == [None] * NODES


def test_a_check_in_which_nothing_happens_fails(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"no fault was injected: the call took .* and the first fault was due after 1"
    ):
        Disturbance(None, tmp_path).check(steps(1), Chaos(600), nodes=1)


async def test_chaos_is_for_nodes_of_this_computer() -> None:
    with pytest.raises(SpecError, match="local nodes"):
        async with Pool(provider=Fake(), chaos=Chaos()):
            pass
    with pytest.raises(SpecError, match=r"work_mib=64"):
        async with Pool(chaos=Chaos(faults=[FullDisk()])):
            pass
    with pytest.raises(SpecError, match="at most 4096 MiB"):
        async with Pool(provider=Local(work_mib=5000), chaos=Chaos(faults=[FullDisk()])):
            pass
    with pytest.raises(SpecError, match="last rank is 0"):
        async with Pool(chaos=Chaos(rank=1)):
            pass
    with pytest.raises(SpecError, match="takes a Chaos"):
        Pool(chaos={"mtbf": 15})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="has no chaos"):
        _ = Pool().chaos


def test_a_pool_without_a_loop_has_chaos_as_well(tmp_path: Path) -> None:
    with Pool(nodes=1, console="silent") as pool, chaos(pool, None, faults=[Kill(at_step=3)]) as report:
        assert pool.run(steps(5)) == (0, 0)
    assert [strike.kind for strike in report.strikes] == ["kill"]
    with Pool(nodes=1, console="silent", chaos=Chaos(None, faults=[Kill(at_step=3)])) as pool:
        assert pool.run(steps(5)) == (0, 0)
        told: dict[str, Any] = json.loads(pool.chaos.write(tmp_path / "a.json").read_text())
    assert told["faults"][0]["fault"] == "Kill(at_step=3)"


@compute
def writes(megabytes: int) -> list[str]:
    """What became of writing that much, once per step."""
    told = []
    for _ in range(4):
        should_stop()
        try:
            Path("data").write_bytes(bytes(megabytes << 20))
            told.append("written")
        except OSError as error:
            told.append(errno.errorcode[error.errno or 0])
        finally:
            Path("data").unlink(missing_ok=True)
    return told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_a_full_disk_is_the_nodes_own_and_has_room_again() -> None:
    full = Chaos(None, faults=[FullDisk(60, at_step=3)])
    async with Pool(provider=Local(work_mib=16), nodes=1, console="silent", chaos=full) as pool:
        assert await pool.run(writes(4)) == ["written", "written", "ENOSPC", "ENOSPC"]
    async with Pool(provider=Local(work_mib=16), nodes=1, console="silent") as pool:
        async with chaos(pool, full):
            assert await pool.run(writes(4)) == ["written", "written", "ENOSPC", "ENOSPC"]
        assert await pool.run(writes(4)) == ["written"] * 4
