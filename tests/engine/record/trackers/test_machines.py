"""The machines of a run: from the events of its record to a webhook, to tags, and to lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tracker_servers import FakeMLflow, Hook, serving

from outrider import trackers
from outrider.engine.record.runs.lines import EVENTS
from outrider.engine.record.trackers import base, feed, wandb
from outrider.engine.record.trackers.base import Tracker
from outrider.engine.record.trackers.feed import Feed
from outrider.engine.record.trackers.mlflow import machine_tags

FACTS = {"job": "4711", "partition": "gpu"}
SLURM = {"class": "Slurm", "partition": "gpu", "account": None, "zones": []}
LAUNCHED = [
    {"event": "node_launching", "node": 0, "machine": "ab12/4711-0", "facts": FACTS},
    {"event": "node_launching", "node": 1, "machine": "ab12/4711-1", "facts": FACTS},
]
READY = [
    {"event": "node_ready", "node": 0, "seat": 0, "machine": "ab12/4711-0", "hostname": "gpu-03"},
    {"event": "node_ready", "node": 1, "seat": 1, "machine": "ab12/4711-1", "hostname": "gpu-04"},
    {"event": "pool_ready", "ready": 2, "wanted": 2, "took_s": 4.0},
]
LATER = [{"event": "node_lost", "node": 1, "cause": "preempted"}]


def machine(node: int, hostname: str = "", *, ready: bool = False) -> dict[str, Any]:
    rank = node if ready else None
    name = f"ab12/4711-{node}"
    return {"node": node, "machine": name, "hostname": hostname, "rank": rank, "ready": ready, "facts": FACTS}


AT_BEGIN = [machine(0), machine(1)]
AT_READY = [machine(0, "gpu-03", ready=True), machine(1, "gpu-04", ready=True)]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The record of a run that has been submitted to a cluster."""
    folder = tmp_path / "20261128-120000-train-1c4e"
    folder.mkdir()
    about = {"name": "train", "began": 1.0, "git": {}, "spec": {"specs": [{"class": "Spec", "provider": SLURM}]}}
    (folder / "run.json").write_text(json.dumps(about))
    write(folder, LAUNCHED)
    return folder


def write(folder: Path, events: list[dict[str, Any]]) -> None:
    with (folder / EVENTS).open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def send(record: Path, tracker: Tracker) -> None:
    """Send a record in two steps: what is there first, and the events that follow."""
    events = iter([[*READY, *LATER]])

    def proceed(of: Feed) -> bool:
        if not of.idle:
            return False
        if (more := next(events, None)) is not None:
            write(record, more)
        return more is None

    with patch.object(feed, "end_of", lambda *_: None):  # the run goes on
        Feed(record, tracker, wait=lambda _: None, clock=lambda: 0.0).run(proceed)


def test_webhook_gets_machines_at_the_beginning_and_when_the_pool_is_ready(record: Path) -> None:
    hook = Hook()
    with serving(hook):
        send(record, trackers.Webhook(hook.address))
    begun = next(each for each in hook.taken.values() if each["kind"] == "begun")
    assert begun["placement"] == {"partition": "gpu"}
    assert begun["machines"] == AT_BEGIN
    ready = next(each["event"] for each in hook.taken.values() if each["kind"] == "event")
    assert ready == {**READY[-1], "machines": AT_READY}


def test_json_lines_have_the_machines(record: Path, tmp_path: Path) -> None:
    send(record, trackers.JSONLines(tmp_path / "lines"))
    (path,) = (tmp_path / "lines").glob("*.jsonl")
    begun, ready = map(json.loads, path.read_text().splitlines())
    assert (begun["kind"], begun["placement"], begun["machines"]) == ("begun", {"partition": "gpu"}, AT_BEGIN)
    assert ready == {"kind": "event", "event": {**READY[-1], "machines": AT_READY}}


def test_mlflow_has_facts_as_tags(record: Path) -> None:
    server = FakeMLflow()
    with serving(server):
        send(record, trackers.MLflow(server.address))
    tags = {name: value for name, value in server.tags[server.only()].items() if name.startswith("outrider.")}
    assert tags == {
        "outrider.run": record.name,
        "outrider.name": "train",
        "outrider.provider": "Slurm",
        "outrider.partition": "gpu",
        "outrider.machines": "ab12/4711-0, ab12/4711-1",
        "outrider.machine.job": "4711",
        "outrider.machine.partition": "gpu",
    }


def test_tags_of_wandb_are_short_and_without_ids() -> None:
    of = [
        {"machine": "i-1", "facts": {"type": "p5.48xlarge", "zone": "us-east-1a", "image": "ami-1"}},
        {"machine": "i-2", "facts": {"type": "p5.48xlarge", "zone": "us-east-1b", "region": "x" * 80}},
    ]
    assert wandb.fact_tags(of) == ["type:p5.48xlarge", "zone:us-east-1a", "zone:us-east-1b"]


def test_tags_of_a_large_pool_name_some_machines_and_count_the_rest() -> None:
    of = [{"machine": f"i-{number}", "facts": {"zone": "us-east-1a"}} for number in range(1000)]
    tags = machine_tags(of)
    assert tags["outrider.machine.zone"] == "us-east-1a"
    assert tags["outrider.machines"].startswith("i-0, i-1, ")
    assert tags["outrider.machines"].endswith("i-19 and 980 more")


def test_processes_of_local_nodes_are_left_out() -> None:
    launched = {"event": "node_launching", "node": 0, "machine": "ab12/n0", "facts": {"pid": "7", "directory": "/tmp"}}
    (found,) = base.machines_of([launched])
    assert (found["machine"], found["facts"]) == ("ab12/n0", {})


@pytest.mark.parametrize("about", [{}, {"spec": None}, {"spec": {"specs": ["local"]}}, {"spec": {"specs": []}}])
def test_a_record_without_a_provider_has_no_placement(about: dict[str, Any]) -> None:
    run = trackers.TrackedRun("1", "run", Path(), 0.0, about, {}, lambda name, text: None)
    assert run.placement == {}
