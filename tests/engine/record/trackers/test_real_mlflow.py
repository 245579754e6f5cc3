"""A real MLflow server with SQLite has what the record has, also when it was away and killed meanwhile.

It runs where `.venv-mlflow`, which `make nightly` fills, or the Python that ``OUTRIDER_MLFLOW`` names has mlflow.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from outrider import Local, Pool, compute, instance_info, log_artifact, log_metrics, log_params, trackers
from outrider.engine.record.runs.metrics import read_metrics
from outrider.engine.record.runs.names import runs_folder

pytestmark = pytest.mark.nightly

PYTHON = os.environ.get("OUTRIDER_MLFLOW") or Path(__file__).parents[4] / ".venv-mlflow" / "bin" / "python"
START_S = 180.0  # it imports for a minute on a busy machine
AWAY_S = 60.0


class Server:
    """`mlflow server` on a port of its own, which it has again when it is started again."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address, self._folder = f"http://127.0.0.1:{self.port}", folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        where = [
            "--backend-store-uri",
            f"sqlite:///{self._folder}/m.db",
            "--artifacts-destination",
            self._folder / "art",
        ]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "mlflow", "server", *where, *address],
                stdout=log, stderr=log, cwd=self._folder, env={**os.environ, **quiet}, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_S
        while True:
            try:
                urlopen(f"{self.address}/health").close()
            except (URLError, OSError):
                assert time.monotonic() < until, (self._folder / "log").read_text()
                time.sleep(0.2)
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def call(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.address}{path}", content, {"Content-Type": "application/json"})) as answer:
            text = answer.read()
        return text if "/artifacts/" in path else json.loads(text)

    def runs(self, experiment: str) -> list[Any]:
        try:
            number = self.call(f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={experiment}")
        except HTTPError:
            return []  # nothing has been sent yet
        wanted = {"experiment_ids": [number["experiment"]["experiment_id"]], "max_results": 100}
        found: list[Any] = self.call("/api/2.0/mlflow/runs/search", wanted).get("runs", [])
        return found

    def rows(self, run: str, names: list[str]) -> list[tuple[str, int, int, str]]:
        found, token = [], ""
        for name in names:
            while True:
                asked = f"run_id={run}&metric_key={quote(name)}&max_results=5000&page_token={token}"
                said = self.call(f"/api/2.0/mlflow/metrics/get-history?{asked}")
                found += [
                    (name, each["step"], each["timestamp"], shown(each["value"])) for each in said.get("metrics", [])
                ]
                if not (token := said.get("next_page_token", "")):
                    break
        return sorted(found)


def shown(value: float | str) -> str:
    """Infinity becomes the largest number there, and nan stays."""
    number = float(value)
    return "inf" if number >= 1.7976931348623157e308 else str(number)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    has = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mlflow') is None)"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", has], check=False).returncode:
        pytest.skip(f"{PYTHON} has no mlflow")
    server = Server(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@compute
def train(steps: int, pause_s: float = 0.0, fail: bool = False) -> None:
    if instance_info().rank == 0:
        log_params({"lr": 0.1, "layers": [8, 8]})
        log_params({"lr": 0.2})
        Path("best.txt").write_text("weights")
        log_artifact("best.txt")
    for step in range(steps):
        loss = {3: float("nan"), 4: float("inf")}.get(step, 1 / (step + 1))
        log_metrics({"loss": loss, "acc/top 1": step / steps}, step=step)
        time.sleep(pause_s)
    if fail:
        raise ValueError("no")


def recorded(experiment: str) -> list[tuple[str, int, int, str]]:
    (record,) = runs_folder().glob(f"*-{experiment}-*")
    return sorted(
        (name, each.step or 0, int(each.at * 1000), shown(value))
        for each in read_metrics(record)
        if not each.rank
        for name, value in each.values.items()
    )


NAMES = ["acc/top 1", "loss"]


def test_ten_thousand_points(server: Server) -> None:
    tracker = trackers.MLflow(server.address, experiment="many")
    with Pool(provider=Local(), nodes=2, run="many", trackers=[tracker], flush_timeout=60) as pool:
        train(5000) @ pool
        began = time.monotonic()
    took_s = time.monotonic() - began
    (run,) = server.runs("many")
    assert server.rows(run["info"]["run_id"], NAMES) == recorded("many")
    assert took_s < 15.0
    assert run["info"]["status"] == "FINISHED"
    assert {each["key"]: each["value"] for each in run["data"]["params"]} == {"lr": "0.2", "layers": "[8, 8]"}
    where = run["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    assert server.call(f"/api/2.0/mlflow-artifacts/artifacts/{where}/best.txt") == b"weights"


def test_a_failed_run(server: Server) -> None:
    tracker = trackers.MLflow(server.address, experiment="failed")
    with (
        pytest.raises(ValueError, match="no"),
        Pool(provider=Local(), run="failed", trackers=[tracker], flush_timeout=60) as pool,
    ):
        train(3, fail=True) >> pool
    (run,) = server.runs("failed")
    assert run["info"]["status"] == "FAILED"


PROGRAM = """
import sys, time
from outrider import Local, Pool, compute, log_metrics, trackers

@compute
def train() -> None:
    for step in range(50):
        log_metrics({"loss": 1 / (step + 1)}, step=step)
    time.sleep(100)

if __name__ == "__main__":
    tracker = trackers.MLflow(sys.argv[1], experiment=sys.argv[2])
    with Pool(provider=Local(), run=sys.argv[2], trackers=[tracker], flush_timeout=60) as pool:
        train() >> pool
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed(server: Server, tmp_path: Path, by: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    client = subprocess.Popen([sys.executable, tmp_path / "program.py", server.address, by.name])
    until = time.monotonic() + 60
    try:
        while not ((found := list(runs_folder().glob("*-*"))) and len(list(read_metrics(found[0]))) == 50):
            assert time.monotonic() < until
            time.sleep(0.1)
        client.send_signal(by)
        client.wait()
        while not (found := server.runs(by.name)) or found[0]["info"]["status"] == "RUNNING":
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        client.kill()
        client.wait()
    assert [run["info"]["status"] for run in found] == ["KILLED"]
    assert server.rows(found[0]["info"]["run_id"], ["loss"]) == recorded(by.name)


def test_a_server_that_is_killed_and_away_for_a_minute(server: Server) -> None:
    tracker = trackers.MLflow(server.address, experiment="away")
    with Pool(provider=Local(), nodes=2, run="away", trackers=[tracker], flush_timeout=120) as pool:
        running = pool.submit(train(1000, AWAY_S * 1.5 / 1000))
        time.sleep(10)
        server.kill()
        time.sleep(AWAY_S)
        server.start()
        running.result()
    (run,) = server.runs("away")
    assert server.rows(run["info"]["run_id"], NAMES) == recorded("away")
    assert run["info"]["status"] == "FINISHED"


@compute
def timed(steps: int) -> float:
    """Return the median time of steps of some work, in seconds."""
    took = []
    for step in range(steps):
        began = time.perf_counter()
        sum(range(15_000))
        time.sleep(0.01)
        log_metrics({"loss": 1 / (step + 1), "rank": instance_info().rank}, step=step)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def test_steps_take_as_long_with_a_tracker_and_with_one_that_is_away(server: Server) -> None:
    """Each of several turns has all three, in an order of its own: other work on the machine hits them alike."""
    given: dict[str, list[trackers.Tracker]] = {
        "none": [],
        "there": [trackers.MLflow(server.address, experiment="steps")],
        "away": [trackers.MLflow("http://127.0.0.1:1")],
    }
    took: dict[str, list[float]] = {kind: [] for kind in given}
    for turn in range(5):
        for kind in random.Random(turn).sample([*given], len(given)):
            with Pool(provider=Local(), nodes=4, run="steps", trackers=given[kind], flush_timeout=0) as pool:
                time.sleep(2)  # the process has begun
                took[kind].append(statistics.median(timed(300) @ pool))
    for kind in ("there", "away"):
        pairs = [one / other for one, other in zip(took[kind], took["none"], strict=True)]
        assert statistics.median(pairs) < 1.02, took
