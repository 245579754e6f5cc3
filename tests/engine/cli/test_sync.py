"""`outrider sync`: what trackers lack of a run is sent by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Local, Pool, compute, log_metrics, trackers
from outrider.engine.cli.common import guarded
from outrider.engine.cli.main import app
from outrider.engine.record.runs.metrics import read_metrics
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.trackers.state_file import StateFile

sys.path.insert(0, str(Path(__file__).parents[1] / "record" / "trackers"))
from tracker_servers import Answer, FakeMLflow, Hook, serving


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server() -> Iterator[FakeMLflow]:
    fake = FakeMLflow()
    with serving(fake):
        yield fake


@compute
def train(steps: int) -> None:
    for step in range(steps):
        log_metrics({"loss": 1 / (step + 1)}, step=step)


def run_of(*given: trackers.Tracker) -> Path:
    with Pool(provider=Local(), run="train", trackers=given, flush_timeout=0) as pool:
        train(30) >> pool
    (record,) = runs_folder().glob("*-train-*")
    return record


def outrider(*words: str) -> int:
    return guarded(lambda: sys.exit(app(list(words))))


def recorded(record: Path) -> list[tuple[str, int, int, float]]:
    return sorted(("loss", each.step or 0, int(each.at * 1000), each.values["loss"]) for each in read_metrics(record))


def test_a_run_without_trackers_is_sent(
    server: FakeMLflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run_of()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    assert outrider("sync", "train", "--to", "mlflow") == 0
    assert capsys.readouterr().out == "mlflow: 30 points sent; it has all of the run\n"
    assert server.rows() == recorded(record)
    assert server.runs[server.only()]["status"] == "FINISHED"
    assert outrider("sync", "train", "--to", "all", "--json") == 0  # and again: nothing is sent twice
    (said,) = json.loads(capsys.readouterr().out)
    assert said["complete"]
    assert (said["tracker"], said["points"], said["lacks"]) == ("mlflow", 0, 0)
    assert set(server.metrics[server.only()].values()) == {1}


def test_what_a_tracker_lacks_is_sent_where_the_record_says(
    server: FakeMLflow, capsys: pytest.CaptureFixture[str]
) -> None:
    down = [True]

    def fails(method: str, path: str) -> None:
        if down[0]:
            raise Answer(503, "down")

    server.fails = fails
    record = run_of(trackers.MLflow(server.address, experiment="digits", ranks="all"))
    assert outrider("sync", "train", "--to", "mlflow", "--timeout", "0") == 1
    told = capsys.readouterr().err
    assert "it lacks 30 points" in told
    assert f"outrider sync {record.name} --to mlflow" in told
    down[0] = False
    assert outrider("sync", "train", "--to", "mlflow") == 0
    assert server.rows() == recorded(record)
    assert server.experiments["digits"] == server.runs[server.only()]["experiment_id"]


def test_runs_says_how_far_a_tracker_is(server: FakeMLflow, capsys: pytest.CaptureFixture[str]) -> None:
    run_of()
    assert outrider("runs", "train", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["trackers"] == []
    assert outrider("sync", "train", "--to", "mlflow", "--url", server.address) == 0
    capsys.readouterr()
    assert outrider("runs", "train") == 0
    assert "mlflow has all of the run\n" in capsys.readouterr().out
    assert outrider("runs", "train", "--json") == 0
    facts = {"tracker": "mlflow", "points": 30, "rejected": 0, "problem": "", "complete": True}
    assert json.loads(capsys.readouterr().out)[0]["trackers"] == [facts]


def test_a_token_that_is_wrong_ends_it_at_once(server: FakeMLflow, capsys: pytest.CaptureFixture[str]) -> None:
    record = run_of()

    def fails(method: str, path: str) -> None:
        raise Answer(401, "who are you?")

    server.fails = fails
    assert outrider("sync", "train", "--to", "mlflow", "--url", server.address) == 1
    assert "answered 401 who are you?" in capsys.readouterr().err
    assert StateFile(record, "mlflow").load().points == 0


def test_a_webhook_is_what_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of()
    hook = Hook()
    with serving(hook):
        assert outrider("sync", "train", "--to", "webhook") == 2
        assert "the address of a webhook is in no record" in capsys.readouterr().err
        monkeypatch.setenv("HOOK_KEY", "shh-shh")
        text = f'[trackers.ci]\nkind = "webhook"\nurl = "{hook.address}"\nsecret = {{ secret = "HOOK_KEY" }}\n'
        (tmp_path / "outrider.toml").write_text(text)
        assert outrider("sync", "train", "--to", "ci") == 0
    assert hook.kinds()[0] == "begun"
    assert hook.kinds()[-1] == "ended"
    assert all("outrider-signature" in headers for _, _, headers, _ in hook.requests)


def test_words_that_mean_nothing_are_refused(server: FakeMLflow, capsys: pytest.CaptureFixture[str]) -> None:
    record = run_of()
    for words, said in (
        (("train", "--to", "wandbee"), "no tracker is called 'wandbee'"),
        (("nothing", "--to", "mlflow"), "there is no run 'nothing'"),
        (("train", "--to", "all"), "was given no trackers"),
        (("train", "--to", "mlflow"), "MLFLOW_TRACKING_URI"),
        (("train", "--to", "mlflow,webhook", "--url", "http://h"), "--url is the address of one tracker"),
    ):
        assert outrider("sync", *words) == 2
        assert said in capsys.readouterr().err
    with StateFile(record, "mlflow").locked():
        assert outrider("sync", "train", "--to", "mlflow", "--url", server.address) == 2
    assert "another process is sending" in capsys.readouterr().err


def test_a_tracker_that_cannot_be_used_holds_up_no_other(
    server: FakeMLflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run_of()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert outrider("sync", "train", "--to", "wandb,webhook,mlflow", "--json") == 1
    told = capsys.readouterr()
    wandb, webhook, mlflow = json.loads(told.out)
    assert (mlflow["tracker"], mlflow["points"], mlflow["complete"]) == ("mlflow", 30, True)
    assert (wandb["tracker"], wandb["points"], wandb["complete"]) == ("wandb", 0, False)
    assert (webhook["tracker"], webhook["complete"]) == ("webhook", False)
    assert "wandb: not sent: " in told.err
    assert "outrider[" in wandb["said"] or "pip install" in wandb["said"]
    assert "the address of a webhook is in no record" in told.err
    assert server.rows() == recorded(record)
    assert outrider("sync", "train", "--to", "wandb") == 2, "alone, it is an error of the command"
