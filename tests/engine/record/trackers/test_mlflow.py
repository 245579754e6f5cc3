"""MLflow as a tracker: what a pool sends to a server that behaves as MLflow's does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracker_servers import Answer, FakeMLflow, serving, wait_until

from outrider import Local, Pool, compute, errors, instance_info, log_artifact, log_metrics, log_params, trackers
from outrider.engine.record.runs.metrics import read_metrics
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.trackers import process as processes


@pytest.fixture
def server() -> Iterator[FakeMLflow]:
    fake = FakeMLflow()
    with serving(fake):
        yield fake


@compute
def train(steps: int, fail: bool = False) -> None:
    if instance_info().rank == 0:
        log_params({"lr": 0.1, "layers": [8, 8]})
        Path("best.txt").write_text("weights")
        log_artifact("best.txt")
    for step in range(steps):
        log_metrics({"loss": float("nan") if step == 1 else 1 / (step + 1), "rank": instance_info().rank}, step=step)
    if fail:
        raise ValueError("no")


def recorded(ranks: set[int | None]) -> list[tuple[str, int, int, float]]:
    (record,) = runs_folder().glob("*-*-*")
    return sorted(
        (name, each.step or 0, int(each.at * 1000), value)
        for each in read_metrics(record)
        if each.rank in ranks
        for name, value in each.values.items()
    )


def test_a_run_of_a_pool_is_one_run_there(server: FakeMLflow) -> None:
    tracker = trackers.MLflow(server.address, experiment="digits")
    with Pool(provider=Local(), nodes=2, run="digits", trackers=[tracker], flush_timeout=100) as pool:
        train(1200) @ pool
    run = server.only()
    (record,) = runs_folder().glob("*-digits-*")
    assert server.runs[run]["status"] == "FINISHED"
    assert server.runs[run]["run_name"] == server.tags[run]["outrider.run"] == record.name
    assert server.experiments["digits"] == server.runs[run]["experiment_id"]
    assert str(server.rows()) == str(recorded({0}))  # nan is not itself
    assert set(server.metrics[run].values()) == {1}  # and nothing was sent twice
    assert server.params[run] == {"lr": "0.1", "layers": "[8, 8]"}
    assert server.artifacts == {f"1/{run}/artifacts/best.txt": b"weights"}


def test_a_failed_run_is_failed_there(server: FakeMLflow) -> None:
    tracker = trackers.MLflow(server.address, ranks="all")
    with (
        pytest.raises(errors.BroadcastFailed),
        Pool(provider=Local(), nodes=1, run="bad", trackers=[tracker], flush_timeout=100) as pool,
    ):
        train(3, fail=True) @ pool
    assert server.runs[server.only()]["status"] == "FAILED"
    assert {name for name, *_ in server.rows()} == {"loss/rank-0", "rank/rank-0"}


def test_no_record_and_trackers_are_refused() -> None:
    with pytest.raises(errors.SpecError, match="run=False leaves none"):
        Pool(provider=Local(), run=False, trackers=[trackers.MLflow("http://127.0.0.1:1")])


@compute(max_restarts=1)
def redo() -> None:
    for step in range(10):
        log_metrics({"loss": float(instance_info().generation)}, step=step)
    if instance_info().generation == 1:
        time.sleep(0.6)  # it has logged that, and is lost then
        raise ValueError("once")


def test_of_redone_steps_the_newest_is_sent_after_an_outage(
    server: FakeMLflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DELAY_S", 600.0)  # the process begins when the block ends
    with Pool(provider=Local(), run="redo", trackers=[trackers.MLflow(server.address)], flush_timeout=100) as pool:
        redo() @ pool
    assert len(recorded({0})) == 20
    assert [value for _, _, _, value in server.rows()] == [2.0] * 10


def test_what_is_wrong_with_a_name_does_not_lose_the_others(server: FakeMLflow) -> None:
    tracker = trackers.MLflow(server.address)
    with Pool(provider=Local(), run="names", trackers=[tracker], flush_timeout=100) as pool:
        names() >> pool
    assert {name for name, *_ in server.rows()} == {"a_b", "x/y", "__/__"}
    assert [(step, value) for name, step, _, value in server.rows() if name == "a_b"] == [(0, 1.0), (1, 2.0)]


def test_params_that_are_long_or_change_are_kept_as_far_as_there_is_room(server: FakeMLflow) -> None:
    server.param_chars = 500
    with Pool(provider=Local(), run="params", trackers=[trackers.MLflow(server.address)], flush_timeout=100) as pool:
        params({"long": "x" * 7000, "lr": 0.1}) >> pool
        wait_until(lambda: server.runs and server.params[server.only()].get("lr"))
        params({"lr": 0.2}) >> pool
    assert server.params[server.only()] == {"long": "x" * 500, "lr": "0.1"}
    assert server.tags[server.only()]["param.lr"] == "0.2"


def test_a_server_that_takes_no_run_loses_none_of_it(server: FakeMLflow, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(method: str, path: str) -> None:
        raise Answer(400, "The plain HTTP request was sent to HTTPS port")

    server.fails = fails
    tracker = trackers.MLflow(server.address)
    with Pool(provider=Local(), run="plain", trackers=[tracker], flush_timeout=0, console="plain") as pool:
        names() >> pool
        wait_until(lambda: [*runs_folder().glob("*-plain-*/trackers/mlflow.json")])
    assert "mlflow lacks 4 points of this run (127.0.0.1:" in capfd.readouterr().err
    assert {path.partition("?")[0] for _, path, _, _ in server.requests} == {"/api/2.0/mlflow/experiments/get-by-name"}


def test_answers_of_another_server_are_told_as_such(server: FakeMLflow) -> None:
    server.take = lambda *_: {}  # type: ignore[method-assign]
    run = trackers.TrackedRun("1", "run", Path(), 0.0, {}, {}, lambda name, text: None)
    with pytest.raises(trackers.Away, match="what no MLflow would: is this its address"):
        trackers.MLflow(server.address).open(run).begun()


@compute
def params(values: dict[str, Any]) -> None:
    log_params(values)


@compute
def names() -> None:
    for value in (1.0, 2.0):
        log_metrics({"a%b": value})
    log_metrics({"/x//y/": 1.0, "../..": 1.0})
