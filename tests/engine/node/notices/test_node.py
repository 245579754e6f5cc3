"""A node's notices, from wherever they come to its client and to its tasks: real workers, real signals and services."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outrider import Preemption, on_preemption, preemption, should_stop
from outrider.engine.node.notices.sources import PreemptFile
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio

WORLD = {"generation": 2, "world_size": 4, "node": 1}
BUSY_S = 10.0  # that may pass until the time that is left is told


def about(seconds: float) -> Any:
    return pytest.approx(seconds - BUSY_S / 2, abs=BUSY_S / 2 + 0.1)


def wait_for_one() -> Preemption:
    while (notice := preemption()) is None:
        time.sleep(0.001)
    return notice


def steps(everywhere: bool = True, pause_s: float = 0.001, folder: str = "") -> int:
    """How many there were before it was told to stop. Each leaves a file in the folder."""
    done = 0
    while not should_stop(everywhere=everywhere):
        if done == 2:
            print("on its way", flush=True)
        done += 1
        if folder:
            (Path(folder) / f"{done}").touch()
        time.sleep(pause_s)
    return done


def rank(of: int = 0, job_generation: int = 2) -> bytes:
    packed: bytes = msgpack.packb(WORLD | {"rank": of, "local_rank": of, "generation": job_generation})
    return packed


async def on_its_way(client: Any, attempt: int) -> None:
    await client.until(lambda: client.printed(attempt))


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_a_notice_reaches_the_client_and_the_tasks_that_run(make: Any, kind: str) -> None:
    client = await make(slots=2, kind=kind)
    attempts = [client.run(wait_for_one) for _ in range(2)]
    await client.turn()
    client.server._watcher.notice("signal", 30.0)
    assert await client.expect(m.PreemptionNotice) == m.PreemptionNotice("signal", about(30))
    for attempt in attempts:
        notice = client.result(await client.answer(attempt))
        assert (notice.source, notice.node) == ("signal", 0)
        assert 0 < notice.seconds_left <= 30
        assert notice.budget_s == pytest.approx(notice.seconds_left - 5, abs=0.1)
    client.server._watcher.notice("signal", None)
    assert await client.until(lambda: m.PreemptionNotice("signal", None) in client.heard)
    assert await client.call(preemption) is None


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_callbacks_run_in_their_task_and_its_answer_waits_for_them(make: Any, kind: str) -> None:
    def work(name: str) -> str:
        told = threading.Event()

        @on_preemption
        def save(notice: Preemption) -> None:
            told.set()
            time.sleep(0.05)
            print(f"{name} saved for {notice.source}")

        assert told.wait(60)
        return name

    client = await make(slots=2, kind=kind)
    attempts = {name: client.run(work, name) for name in ("one", "other")}
    await client.turn()
    client.server._watcher.notice("file", 30.0)
    for name, attempt in attempts.items():
        assert client.result(await client.answer(attempt)) == name
        assert client.printed(attempt) == f"{name} saved for file\n".encode()


async def test_a_task_that_starts_under_a_notice_knows_it(make: Any) -> None:
    client = await make()
    client.server._watcher.notice("file", 9.0)
    assert (await client.call(preemption)).source == "file"
    assert (await client.call(preemption, flags=m.RunFlag.FRESH)).source == "file"
    assert await client.call(should_stop) is True


async def test_processes_that_a_task_starts_know_it_too(make: Any) -> None:
    def ask_elsewhere() -> str:
        program = "import outrider; print(outrider.preemption().source, outrider.should_stop())"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    client = await make()
    client.server._watcher.notice("azure", 9.0)
    assert await client.call(ask_elsewhere) == "azure True\n"


async def test_the_file_of_a_node_is_a_source(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(PreemptFile, "every_s", 0.005)
    client = await make()
    file = tmp_path / "preempt"
    file.write_text("120")
    await client.until(lambda: client.heard[-1] == m.PreemptionNotice("file", about(120)))
    file.unlink()
    await client.until(lambda: client.heard[-1] == m.PreemptionNotice("file", None))


@pytest.mark.usefixtures("quick")
async def test_the_clouds_that_its_setup_names_are_asked(make: Any, service: Any) -> None:
    async def answer(request: Any) -> Any:
        return 200, "TRUE", {"Metadata-Flavor": "Google"}

    service.answer = answer
    client = await make(connect=False)
    assert service.asked == []
    client.setup["notices"] = [f"gcp,url={service.url}"]
    await client.connect()
    assert await client.expect(m.PreemptionNotice) == m.PreemptionNotice("gcp", about(30))


async def test_no_setup_no_question(make: Any, monkeypatch: Any) -> None:
    def nobody(*args: Any, **options: Any) -> Any:
        raise AssertionError("nobody is to be asked")

    monkeypatch.setattr(asyncio, "open_connection", nobody)
    client = await make()
    assert await client.call(preemption) is None


@pytest.mark.parametrize("notices", ["aws", [3], ["aws,url=x"], ["gcp", "gcp"], {"aws": ""}], ids=str)
async def test_a_source_that_there_is_not_is_refused(make: Any, notices: Any) -> None:
    client = await make(connect=False)
    client.setup["notices"] = notices
    refused = await client.connect()
    assert isinstance(refused, m.Refused)
    assert "notices" in refused.reason or "option" in refused.reason


async def test_signals_that_announce_the_end_end_nothing(make: Any) -> None:
    """As Slurm sends them: to every process of the step."""

    def told_as_well() -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getppid(), signal.SIGUSR1)
        return os.getpid()

    client = await make(connect=False)
    client.setup["notices"] = ["slurm,USR1=120,USR2=withdrawn"]
    await client.connect()
    worker = await client.call(told_as_well)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert await client.expect(m.PreemptionNotice) == m.PreemptionNotice("slurm", about(120))
    assert await client.call(os.getpid) == worker
    os.kill(os.getpid(), signal.SIGUSR2)
    await client.until(lambda: client.heard[-1] == m.PreemptionNotice("slurm", None))


async def test_a_source_of_ones_own_and_one_that_fails(make: Any, capfd: Any) -> None:
    class Cloud:
        name = "cloud"

        async def watch(self, report: Callable[[float | None], None]) -> None:
            report(5.0)
            await asyncio.Event().wait()

    class Broken:
        name = "broken"

        async def watch(self, report: Callable[[float | None], None]) -> None:
            report(7.0)
            raise LookupError("a defect")

    client = await make()
    client.server._watcher.start([Broken(), Cloud()])
    for source, seconds in (("cloud", 5), ("broken", 7)):
        said = m.PreemptionNotice(source, about(seconds))
        await client.until(lambda said=said: said in client.heard)
    assert capfd.readouterr().err.count("broken has failed") == 1


async def test_a_client_that_was_away_hears_how_long_is_left_now(make: Any) -> None:
    client = await make()
    client.server._watcher.notice("signal", 9.0)
    await client.expect(m.PreemptionNotice)
    client.cut()
    await asyncio.sleep(0.05)
    await client.connect()
    await client.until(lambda: len([x for x in client.heard if isinstance(x, m.PreemptionNotice)]) == 2)
    first, second = (x.seconds for x in client.heard if isinstance(x, m.PreemptionNotice))
    assert second <= first - 0.05
    client.cut()
    client.server._watcher.notice("signal", None)
    await client.connect()
    await client.until(lambda: client.heard[-1] == m.PreemptionNotice("signal", None))


async def test_what_the_client_heard_from_outside_reaches_the_tasks(make: Any) -> None:
    client = await make()
    attempt = client.run(wait_for_one)
    await client.turn()
    client.send(m.PreemptionNotice("spot", 50.0))
    assert client.result(await client.answer(attempt)).source == "spot"
    client.server._watcher.notice("file", 20.0)
    assert (await client.call(preemption)).source == "file"
    client.server._watcher.notice("file", None)
    assert (await client.call(preemption)).source == "spot"
    client.cut()
    await client.connect()
    client.send(m.PreemptionNotice("spot", None))
    while await client.call(preemption) is not None:
        pass
    assert {x.source for x in client.heard if isinstance(x, m.PreemptionNotice)} == {"file"}, "it knows its own"


# --- the ranks of a generation ---------------------------------------------------------------------------------------


async def test_ranks_stop_at_the_same_question_wherever_they_are(make: Any) -> None:
    """One asks four times as often as another; the third has not asked yet."""
    client = await make(slots=3)
    attempts = [client.run(steps, True, pause, world=rank(number)) for number, pause in enumerate((0.001, 0.004))]
    for attempt in attempts:
        await on_its_way(client, attempt)
    client.send(m.PreemptionNotice("gcp", 30.0, m.Peer(7, 2, 1, 3)))
    asked = await client.expect(m.StopChecks)
    assert asked[:2] == (7, 2)
    late = client.run(steps, True, 0.0, world=rank(2))
    await asyncio.sleep(0.05)
    assert not [x for x in client.heard if isinstance(x, m.Done)], "nobody stops before all agree"
    client.send(m.StopAt(7, 2, asked.checks + 5))
    for attempt in [*attempts, late]:
        assert client.result(await client.answer(attempt)) == asked.checks + 4


async def test_a_peers_notice_can_be_read_and_is_not_ones_own(make: Any) -> None:
    def what_is_known() -> tuple[Any, Any, bool]:
        while (notice := preemption(everywhere=True)) is None:
            time.sleep(0.001)
        return notice, preemption(), should_stop()

    client = await make(slots=2)
    attempt = client.run(what_is_known, world=rank())
    await client.turn()
    client.send(m.PreemptionNotice("gcp", 30.0, m.Peer(7, 2, 1, 3)))
    notice, own, stop = client.result(await client.answer(attempt))
    assert (notice.source, notice.node, own, stop) == ("gcp", 3, None, False)
    assert 0 < notice.seconds_left <= 30
    for told in (rank(0, 3), None):  # the next generation's, and a task without one
        assert await client.call(lambda: preemption(everywhere=True), world=told) is None


async def test_a_peers_notice_that_is_withdrawn_lets_the_ranks_go_on(make: Any, tmp_path: Path) -> None:
    (made := tmp_path / "made").mkdir()
    client = await make()
    attempt = client.run(steps, True, 0.001, str(made), world=rank())
    await on_its_way(client, attempt)
    client.send(m.PreemptionNotice("gcp", 30.0, m.Peer(7, 2, 1, 3)))
    asked = (await client.expect(m.StopChecks)).checks
    client.send(m.PreemptionNotice("gcp", None, m.Peer(7, 2, 1, 3)))
    while not (made / f"{asked + 3}").exists():
        await client.turn()
    client.send(m.PreemptionNotice("gcp", 30.0, m.Peer(7, 2, 2, 3)))
    again = await client.until(lambda: [x for x in client.heard if isinstance(x, m.StopChecks)][1:])
    assert again[0].checks > asked + 1, "it went on meanwhile"
    assert [x.number for x in client.heard if isinstance(x, m.StopChecks)] == [1, 2]
    client.send(m.StopAt(7, 2, again[0].checks + 1))
    assert client.result(await client.answer(attempt)) == again[0].checks
    assert await client.call(steps, world=rank()) == again[0].checks, "agreed is agreed"


async def test_ranks_that_cannot_agree_go_on(make: Any) -> None:
    """The client is away, and a machine's time runs: no rank may stop alone."""

    def in_vain() -> tuple[float, float, bool]:
        from outrider.engine.runtime import preemption as module

        module.AGREE_S = 0.05
        while preemption(everywhere=True) is None:
            time.sleep(0.001)
        began = time.monotonic()
        first = should_stop(everywhere=True)
        waited = time.monotonic() - began
        return waited, sum(should_stop(everywhere=True) for _ in range(100)), first

    client = await make()
    attempt = client.run(in_vain, world=rank())
    await client.turn()
    client.send(m.PreemptionNotice("gcp", 30.0, m.Peer(7, 2, 1, 3)))
    waited, stops, first = client.result(await client.answer(attempt))
    assert waited >= 0.05
    assert (stops, first) == (0, False)


async def test_a_world_of_one_agrees_with_itself(make: Any) -> None:
    client = await make()
    attempt = client.run(steps)
    await client.turn()
    client.server._watcher.notice("file", 9.0)
    assert client.result(await client.answer(attempt)) >= 0


async def test_agreeing_is_for_the_ranks_own_process(make: Any) -> None:
    def elsewhere() -> str:
        program = "import outrider; outrider.should_stop(everywhere=True)"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr

    client = await make()
    assert "call it in the task's own process" in await client.call(elsewhere, world=rank())
