"""What tasks log is in the record: from every process of theirs, each record once, whatever becomes of connections."""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, Worker, compute, instance_info, log_artifact, log_metrics, log_params, log_text
from outrider.engine.client import opening
from outrider.engine.objects import blob_transfers
from outrider.engine.objects.blob_transfers import BlobTransfers
from outrider.engine.record.runs.metrics import Logged, Series, newest, read_metrics
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.transport import node_reports
from outrider.engine.transport.node_reports import NodeReports

pytestmark = pytest.mark.anyio
AWAY_S = 60.0  # that a node may be out of reach before it is lost
PYTHON = """
from outrider import log_metrics, log_text
log_metrics({"python": float("inf")}, step=3)
log_text("hi", name="greeting")
"""
OTHER_LANGUAGE = """
import os, socket
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.connect(os.environ["OUTRIDER_LOG"])
log.send(b'{"values": {"other": 1}, "step": 4}')
"""


@pytest.fixture
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the test's run, which no other has."""
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    return f"t{abs(hash(request.node.nodeid))}"


def record(name: str) -> Path:
    (found,) = runs_folder().glob(f"*-{name}-*")
    return found


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    path = directory / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def child(number: int) -> None:
    log_metrics({"forked": number}, step=number)


class Loader:
    """A data set that logs where it is read: in a data loader's worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        log_metrics({"loaded": index}, step=index)
        return index


@compute
def from_everywhere() -> int:
    log_metrics({"task": float("nan")}, step=0)
    process = multiprocessing.get_context("fork").Process(target=child, args=(1,))
    process.start()
    process.join()
    thread = threading.Thread(target=log_metrics, args=({"thread": 1},), kwargs={"step": 2})
    thread.start()
    thread.join()
    for program in (PYTHON, OTHER_LANGUAGE):
        subprocess.run([sys.executable, "-c", program], check=True)
    command = [sys.executable, "-m", "outrider", "log", "command=0.5", "--step", "5", "--param", "lr=0.1"]
    subprocess.run(command, check=True)
    assert process.exitcode is not None
    return process.exitcode


@compute(cpus=1)
def in_a_process_of_its_own() -> int:
    return from_everywhere.function()


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_every_process_of_a_task_logs_and_none_is_ended_by_it(named: str, kind: Any) -> None:
    async with Pool(provider=Local(), run=named, console="silent", worker=Worker(kind=kind)) as pool:
        for function in (from_everywhere, in_a_process_of_its_own):
            assert await pool.run(function()) == 0
    logged = read_metrics(record(named))
    values = Counter((each.function, each.rank, each.step, *each.values) for each in logged)
    functions = "from_everywhere", "in_a_process_of_its_own"
    names = ["task", "forked", "thread", "python", "other", "command"]
    assert values == {(each, None, step, name): 1 for each in functions for step, name in enumerate(names)}
    assert {(each["name"], each["text"]) for each in lines(record(named), "texts.jsonl")} == {("greeting", "hi")}
    assert json.loads((record(named) / "params.json").read_text()) == {"lr": 0.1}


async def test_a_data_loaders_workers_log(named: str) -> None:
    data = pytest.importorskip("torch.utils.data")

    @compute
    def load() -> int:
        loader = data.DataLoader(Loader(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        return sum(len(batch) for batch in loader)

    async with Pool(provider=Local(), run=named, console="silent") as pool:
        assert await pool.run(load()) == 8
    assert sorted(each.values["loaded"] for each in read_metrics(record(named))) == list(range(8))


@compute
def train(calls: int, each_s: float) -> float:
    """Log two metrics so often; return the mean time of a call."""
    info, took, began = instance_info(), 0.0, time.monotonic()
    for step in range(calls):
        since = time.perf_counter()
        log_metrics({"loss": 1 / (step + 1), "rank": info.rank}, step=step)
        took += time.perf_counter() - since
        time.sleep(max(0.0, began + (step + 1) * each_s - time.monotonic()))
    return took / calls


def cut_for(connection: Any, seconds: float) -> None:
    """Break a node's connection, and let none begin for a while."""
    route, until = connection._route, time.monotonic() + seconds
    reach = route.reach

    async def reached(*, again: bool) -> None:
        if time.monotonic() < until:
            raise ConnectionResetError("cut")
        await reach(again=again)

    route.reach = reached
    connection.cut("cut")


async def logged_across_a_cut(name: str, provider: Local, calls: int, cut_s: float) -> list[float]:
    async with Pool(provider=provider, nodes=4, run=name, console="silent") as pool:
        running = asyncio.ensure_future(pool.broadcast(train(calls, 0.01)))
        await asyncio.sleep(0.3)
        cut_for([*pool._opened().connector._connections.values()][1], cut_s)
        return await running


def check_once(logged: list[Logged], calls: int) -> None:
    count = Counter((each.rank, each.step, name) for each in logged for name in each.values)
    assert set(count.values()) == {1}
    assert len(count) == 4 * 2 * calls


@pytest.mark.parametrize("provider", [Local(), Local(as_remote=True)], ids=["local", "as remote"])
async def test_each_record_arrives_once_across_a_cut(
    named: str, provider: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "RECONNECT_S", AWAY_S)
    await logged_across_a_cut(named, provider, 150, 0.8)
    logged = read_metrics(record(named))
    check_once(logged, 150)
    assert all((each.values["rank"], each.function, each.generation) == (each.rank, "train", 1) for each in logged)


@pytest.mark.nightly
async def test_24000_points_arrive_once_across_a_cut_of_ten_seconds(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "RECONNECT_S", AWAY_S)
    took = await logged_across_a_cut(named, Local(as_remote=True), 3000, 10.0)
    check_once(read_metrics(record(named)), 3000)
    print([f"{each * 1e6:.1f} us" for each in took])


@compute
def resumed(directory: str) -> None:
    """Three steps; who has logged them in the first generation waits for rank 1 to be lost, and to have come again."""
    info = instance_info()
    for step in range(3):
        log_metrics({"loss": 10 * info.generation + step}, step=step)
    Path(directory, f"{info.rank}-{info.generation}").touch()
    while not Path(directory, "1-2").exists():
        time.sleep(0.01)


async def test_a_step_that_is_redone_counts_once(named: str, tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=2, run=named, console="silent") as pool:
        running = asyncio.ensure_future(pool.broadcast(resumed(str(tmp_path))))
        while len([*tmp_path.iterdir()]) < 2:
            await asyncio.sleep(0.01)
        while sum(each.rank == 1 for each in read_metrics(record(named))) < 3:
            await asyncio.sleep(0.01)
        (lost,) = [node for node in pool.snapshot().nodes if node.rank == 1]  # ranks are not in the order of nodes
        os.killpg(int((lost.facts or {})["group"]), signal.SIGKILL)
        await running
    logged = read_metrics(record(named))
    assert {each.generation for each in logged if each.rank == 1} == {1, 2}
    points = newest(logged)[Series("resumed", logged[0].job, 1, "loss")]
    assert [(point.step, point.value) for point in points] == [(step, 20.0 + step) for step in range(3)]


@pytest.mark.parametrize(
    "provider", [Local(), Local(shared_memory=False), Local(as_remote=True)], ids=["local", "unshared", "as remote"]
)
async def test_artifacts_arrive_before_the_pool_has_ended(named: str, provider: Local) -> None:
    size_bytes = 3_000_000

    @compute
    def save() -> None:
        rank = instance_info().rank
        Path("best.pt").write_bytes(bytes([rank]) * size_bytes)
        log_artifact("best.pt")
        Path("best.pt").write_bytes(b"changed afterwards")
        Path("empty").touch()
        log_artifact("empty", f"nothing of {rank}")
        log_params({"rank": rank})
        log_text("saved", step=rank)
        with pytest.raises(IsADirectoryError, match="log_artifact takes files"):
            log_artifact(".")

    async with Pool(provider=provider, nodes=2, run=named, console="silent") as pool:
        await pool.broadcast(save())
    directory = record(named)
    told = {(each["name"], each["rank"]): each for each in lines(directory, "artifacts.jsonl")}
    assert {*told} == {("best.pt", 0), ("best.pt", 1), ("nothing of 0", 0), ("nothing of 1", 1)}
    for rank in range(2):
        best, empty = told["best.pt", rank], told[f"nothing of {rank}", rank]
        content = (directory / best["path"]).read_bytes()
        assert content == bytes([rank]) * size_bytes
        assert (best["size_bytes"], best["sha256"]) == (size_bytes, hashlib.sha256(content).hexdigest())
        assert (directory / empty["path"]).read_bytes() == b""
    assert len({each["path"] for each in told.values()}) == 4
    assert [each["text"] for each in lines(directory, "texts.jsonl")] == ["saved", "saved"]
    assert not [each for each in lines(directory, "events.jsonl") if each["event"] == "records_lost"]


async def test_what_a_program_logs_with_its_pool_open_is_in_the_pools_record(named: str, tmp_path: Path) -> None:
    async with Pool(provider=Local(), run=named, console="silent"):
        log_metrics({"validation": 0.5}, step=1)
        (tmp_path / "notes.txt").write_text("all is well")
        log_artifact(tmp_path / "notes.txt")
    (logged,) = read_metrics(record(named))
    assert (logged.function, logged.job, logged.rank, logged.node) == ("", 0, None, None)
    assert (record(named) / "artifacts" / "notes.txt").read_text() == "all is well"


async def test_without_a_record_logging_does_nothing(tmp_path: Path) -> None:
    @compute
    def log_all() -> None:
        log_metrics({"loss": 1})
        Path("file").write_text("content")
        log_artifact("file")

    before = [*runs_folder().glob("*")]
    async with Pool(provider=Local(), run=False, console="silent") as pool:
        await pool.run(log_all())
    assert [*runs_folder().glob("*")] == before


PROGRAM = """
import os, outrider
for step in range(3):
    outrider.log_metrics({"loss": step}, step=step)
outrider.log_params({"lr": 0.1})
pid = os.fork()
if not pid:
    outrider.log_metrics({"child": 1})
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("runs", ["1", "0"])
def test_a_program_without_a_pool_has_a_run_of_its_own(tmp_path: Path, runs: str) -> None:
    (tmp_path / "alone.py").write_text(PROGRAM)
    env = {**os.environ, "OUTRIDER_STATE": str(tmp_path / "state"), "OUTRIDER_RUNS": runs}
    subprocess.run([sys.executable, "alone.py"], check=True, cwd=tmp_path, env=env)
    found = [*(tmp_path / "state").glob("runs/*-alone-*")]
    assert len(found) == int(runs)
    for directory in found:
        assert [each.values for each in read_metrics(directory)] == [{"loss": step} for step in range(3)]
        assert json.loads((directory / "status.json").read_text())["state"] == "ended"
        assert json.loads((directory / "params.json").read_text()) == {"lr": 0.1}


CHILDREN = """
import multiprocessing, os, sys
import outrider

def log(step):
    outrider.log_metrics({"loss": step}, step=step)
    outrider.log_artifact(__file__)  # waits for the record, if there is one

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=log, args=(1,))
    child.start()
    child.join()
    assert child.exitcode == 0
    if not (pid := os.fork()):
        log(2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_a_program_begin_no_run(tmp_path: Path, method: str) -> None:
    """They are many, and end without a word: their runs would seem to have crashed."""
    (tmp_path / "alone.py").write_text(CHILDREN)
    env = {**os.environ, "OUTRIDER_STATE": str(tmp_path / "state"), "OUTRIDER_RUNS": "1"}
    subprocess.run([sys.executable, "alone.py", method], check=True, cwd=tmp_path, env=env)
    assert not (tmp_path / "state/runs").exists()


FORKED = """
import os, outrider
with outrider.Pool(provider=outrider.Local(), run="parents", console="silent"):
    outrider.log_artifact(__file__, "of-parent")
    if not (pid := os.fork()):
        with outrider.Pool(provider=outrider.Local(), run="childs", console="silent"):
            outrider.log_artifact(__file__, "of-child")
        outrider.log_artifact(__file__, "of-nobody")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    outrider.log_artifact(__file__, "of-parent-again")
"""


def test_a_forked_child_logs_into_the_record_of_its_own_pool_alone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(FORKED)
    env = {**os.environ, "OUTRIDER_STATE": str(tmp_path / "state"), "OUTRIDER_RUNS": "1"}
    subprocess.run([sys.executable, "program.py"], check=True, cwd=tmp_path, env=env)
    kept = {
        path.name.split("-")[2]: sorted(each.name for each in (path / "artifacts").iterdir())
        for path in (tmp_path / "state" / "runs").glob("2*")
    }
    assert kept == {"parents": ["of-parent", "of-parent-again"], "childs": ["of-child"]}


async def test_a_node_of_a_pool_without_a_record_sends_nothing_of_what_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(NodeReports, "_receive_log", lambda reports, message: sent.append(message))

    @compute
    def work() -> str:
        log_metrics({"loss": 1.0})
        log_text("hi")
        log_params({"a": 1})
        (tmp_path / "file").write_bytes(b"x")
        log_artifact(tmp_path / "file")
        return "done"

    async with Pool(provider=Local(), run=False) as pool:
        assert await pool.run(work()) == "done"
    assert sent == []


async def test_an_artifact_that_is_too_large_is_not_fetched_and_its_task_goes_on(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that errs may say what it likes: the client looks at the size itself."""
    monkeypatch.setattr(node_reports, "ARTIFACT_BYTES", 1000)
    maps: list[int | None] = []
    mapped = blob_transfers.map_shared
    monkeypatch.setattr(
        blob_transfers, "map_shared", lambda path, most=None: (maps.append(most), mapped(path, most))[1]
    )

    @compute
    def work() -> str:
        for size in (1000, 1001):
            (tmp_path / "file").write_bytes(bytes(size))
            log_artifact(tmp_path / "file", f"of-{size}")
        return "done"

    async with Pool(provider=Local(), run=named) as pool:
        assert await pool.run(work()) == "done"
    kept = record(named)
    assert [each["name"] for each in lines(kept, "artifacts.jsonl")] == ["of-1000"]
    (lost,) = [each for each in lines(kept, "events.jsonl") if each["event"] == "records_lost"]
    assert lost["why"] == "an artifact could not be fetched: it has 1,001 bytes, and at most 1,000 are taken"
    assert maps == [1000, 1000]


async def test_a_record_that_has_failed_gets_no_artifacts(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[object] = []
    monkeypatch.setattr(BlobTransfers, "bring", lambda *given: fetched.append(given))

    @compute
    def work() -> str:
        (tmp_path / "file").write_bytes(b"x")
        log_artifact(tmp_path / "file")
        return "done"

    async with Pool(provider=Local(), run=named) as pool:
        sink = pool._opened().observer._record
        assert sink is not None
        sink._writer._fail(OSError(28, "No space left on device"))
        assert await pool.run(work()) == "done"
    assert fetched == []
