"""What Prometheus is told of living runs: its text parses, and is what the records have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.actors import events as ev
from outrider.engine.record.runs.reader import Run
from outrider.engine.record.runs.status import RunStatus
from outrider.engine.record.runs.writer import Happened, Pages
from outrider.engine.record.ui import prometheus

pytest.importorskip("prometheus_client")  # of the group dev, which CI installs
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed

from outrider.engine.record.ui.prometheus import ENDED_S, Exporter

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from living import Living, living
from records import Record, training

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
GPU = {"index": 1, "utilisation": 0.97, "memory_bytes": 7 << 30, "memory_total_bytes": 80 << 30, "watts": None}
Told = dict[tuple[str, ...], float]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return training(tmp_path_factory.mktemp("whole"), nodes=2, losses=1, steps=60, every=10)


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Iterator[Living]:
    with living(whole, tmp_path / "runs") as made:
        yield made


def told(exporter: Exporter, accept: str = "") -> dict[str, Told]:
    """The samples by their metric, each by its labels but the run."""
    found: dict[str, Told] = {}
    text = exporter.text(accept).content.decode()
    for family in (openmetrics if accept else parsed)(text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "run")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def append(run: Living, *events: ev.Event) -> None:
    pages = Pages(RunStatus(run.run.id, "train", 0.0))
    for event in events:
        pages.add(Happened(event, 1.0))
    with (run.directory / "events.jsonl").open("ab") as file:
        file.write(pages.taken()["events.jsonl"])


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_its_text_is_what_the_clients_parser_reads(run: Living, accept: str) -> None:
    run.grow(1.0)
    run.append("metrics.jsonl", metric('weird "name"\\\n é', float("nan"), rank=None))
    exporter = Exporter(run.directory.parent)
    assert exporter.text(accept).kind.startswith("application/openmetrics-text" if accept else "text/plain")
    found = told(exporter, accept)
    assert [*found["outrider_run_info"].values()] == [1.0]
    assert 'weird "name"\\\n é' in {labels[1] for labels in found["outrider_metric"]}


def metric(name: str, value: float, *, rank: int | None = 0, **more: Any) -> dict[str, Any]:
    said = {"at": 1.0, "function": "train", "job": 1, "rank": rank, "node": 0, "generation": 1, "step": 1}
    return said | {"values": {name: value if value == value else "nan"}} | more  # noqa: PLR0124  nan


def test_nodes_states_counts_and_cost_are_those_of_the_record(run: Living) -> None:
    run.write_status(state="running", ended=None, exit=None, generation=2, wanted_nodes=2, spent_usd=1.25,
                     hourly_usd=0.0, calls=12, finished_calls=9, failed_calls=2)  # fmt: skip
    run.grow(1.0)
    append(run, ev.NodeNoticed(1, "aws", 120.0), ev.LaunchFailed("none left", 1, 3.0), ev.NodeLaunching(7, "i-7"),
           ev.NodeQueued(8, "Priority"))  # fmt: skip
    found = told(Exporter(run.directory.parent))
    nodes = {state: count for (state,), count in found["outrider_nodes"].items() if count}
    lost = found["outrider_nodes_lost_total"][()]
    assert lost == found["outrider_generations_lost_total"][()] == 1
    assert nodes == {"launching": 1, "queued": 1, "ready": 1, "noticed": 1}
    assert {state: value for (state,), value in found["outrider_run_state"].items() if value} == {"running": 1}
    assert [found[f"outrider_{name}"][()] for name in (
        "nodes_wanted", "generation", "cost_usd_total", "cost_usd_per_hour", "calls_submitted_total",
        "calls_finished_total", "calls_failed_total", "preemption_notices_total", "launch_failures_total",
    )] == [2, 2, 1.25, 0, 12, 9, 2, 1, 1]  # fmt: skip


def test_a_metric_is_the_newest_value_of_each_rank(run: Living) -> None:
    exporter = Exporter(run.directory.parent)
    for said in (
        metric("loss", 4.0, step=4),
        metric("loss", 3.0, step=2, generation=2),  # done again
        metric("loss", 9.0, step=5),  # of a rank that had been fenced: it came late
        metric("loss", 5.0, rank=1, step=3),
        metric("size", 1.0, rank=None, job=3, generation=2),
        metric("size", 2.0, rank=None, job=2),
    ):
        run.append("metrics.jsonl", said)
    found = told(exporter)
    assert found["outrider_metric"] == {
        ("train", "loss", "0"): 3.0, ("train", "loss", "1"): 5.0, ("train", "size", ""): 2.0,
    }  # fmt: skip
    assert found["outrider_metric_step"]["train", "loss", "0"] == 2
    run.append("metrics.jsonl", metric("loss", 8.0, job=9))
    assert told(exporter)["outrider_metric"]["train", "loss", "0"] == 8.0


def test_a_run_has_at_most_so_many_metrics(run: Living, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_METRICS", 3)
    for number in range(5):
        run.append("metrics.jsonl", metric(f"m{number}", 1.0))
    run.append("metrics.jsonl", metric("m1", 2.0))
    found = told(Exporter(run.directory.parent))
    assert {labels[1]: value for labels, value in found["outrider_metric"].items()} == {"m0": 1, "m1": 2, "m2": 1}
    assert found["outrider_metrics_left_out"][()] == 2


def test_nodes_tell_their_use_and_those_that_left_do_not(tmp_path: Path) -> None:
    record = Record(tmp_path / "whole")
    for node in (0, 1):
        record.events.append(ev.NodeLaunching(node, f"i-{node}"))
        record.sample(1.0, node, 0.25, gpus=[GPU])
    record.sample(2.0, 0, 0.5, gpus=[GPU])
    with living(record.write(), tmp_path / "runs") as run:
        run.grow(1.0)
        exporter = Exporter(run.directory.parent)
        found = told(exporter)
        assert found["outrider_node_cpu_ratio"] == {("0",): 0.5, ("1",): 0.25}
        assert found["outrider_node_network_received_bytes_total"] == {("0",): 2_250_000, ("1",): 750_000}
        assert found["outrider_gpu_utilization_ratio"] == {("1", "0"): 0.97, ("1", "1"): 0.97}
        assert found["outrider_gpu_memory_size_bytes"]["1", "1"] == 80 << 30
        assert "outrider_gpu_power_watts" not in found, "the driver does not say it"
        append(run, ev.NodeLost(1, "gone"))
        assert told(exporter)["outrider_node_cpu_ratio"] == {("0",): 0.5}


def test_counters_only_rise(whole: Run, tmp_path: Path) -> None:
    """Also while the record grows, and where a node's end makes the cost that was expected too high."""
    with living(whole, tmp_path / "runs") as run:
        exporter, before = Exporter(run.directory.parent), dict[str, float]()
        for part in (0.1, 0.3, 0.55, 0.8, 1.0):
            run.grow(part)
            run.write_status(state="running", ended=None, exit=None, spent_usd=2.0 - part, hourly_usd=0.0)
            now = {name: sum(values.values()) for name, values in told(exporter).items() if name.endswith("_total")}
            assert all(now[name] >= value for name, value in before.items())
            before = now
        assert before["outrider_nodes_lost_total"] == 1
        assert before["outrider_cost_usd_total"] == 1.9


def test_a_run_is_told_of_for_a_while_after_its_end(whole: Run, tmp_path: Path) -> None:
    clock = Clock()
    with living(whole, tmp_path / "runs") as run:
        exporter = Exporter(run.directory.parent, clock)
        run.grow(0.7)
        assert told(exporter)["outrider_run_state"]["running",] == 1
        run.end()
        found = told(exporter)
        assert (found["outrider_run_state"]["ended",], found["outrider_run_state"]["running",]) == (1, 0)
        assert not any(found["outrider_nodes"].values())
        clock.now = ENDED_S
        assert "outrider_run_state" not in told(exporter)
        assert "outrider_run_state" not in told(Exporter(run.directory.parent)), "it had ended before"


def test_a_run_whose_program_was_killed_died(run: Living) -> None:
    exporter = Exporter(run.directory.parent)
    told(exporter)
    run.close()
    assert told(exporter)["outrider_run_state"]["died",] == 1


def test_of_a_large_file_the_newest_is_read(run: Living, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "READ_BYTES", 1000)
    for number in range(100):
        run.append("metrics.jsonl", metric("loss", float(number)))
    exporter = Exporter(run.directory.parent)
    assert told(exporter)["outrider_metric"]["train", "loss", "0"] == 99.0
    with (run.directory / "metrics.jsonl").open("a") as file:
        file.write('{"half": ')
    assert told(exporter)["outrider_metric"]["train", "loss", "0"] == 99.0
    for _ in range(60):  # events are counted, so all of them are read, by and by
        append(run, ev.LaunchFailed("none left", 1, 3.0))
    seen = [told(exporter)["outrider_launch_failures_total"][()] for _ in range(30)]
    assert seen[0] < 60
    assert seen[-1] == 60


def test_a_family_has_a_unit_and_no_name_twice(run: Living) -> None:
    """https://prometheus.io/docs/practices/naming: base units, counters end in _total and nothing else does."""
    exporter = Exporter(run.directory.parent)
    text = exporter.text().content.decode()
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert len(kinds) == text.count("# TYPE")
    assert {name for name, kind in kinds.items() if kind == "counter"} == {n for n in kinds if n.endswith("_total")}
    assert all(name.startswith("outrider_") for name in kinds)
