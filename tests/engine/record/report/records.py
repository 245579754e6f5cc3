"""Records of runs as they are on disk, in any size: made from the events and files that a real run leaves."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.actors import events as ev
from outrider.engine.api.sink import Origin
from outrider.engine.record.runs.lines import EVENTS
from outrider.engine.record.runs.logged import Batch, LoggedPages
from outrider.engine.record.runs.names import name_in
from outrider.engine.record.runs.reader import Run, read_json
from outrider.engine.record.runs.status import RunStatus
from outrider.engine.record.runs.writer import Happened, Pages
from outrider.engine.wire import log_records

BEGAN = 1_795_595_000.0


@dataclass
class Record:
    """A record that is being made. Times are seconds since its beginning."""

    folder: Path
    name: str = "train"
    events: list[ev.Event] = field(default_factory=list)
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    told: list[bytes] = field(default_factory=list)  # lines of events that no pool has
    seconds: float = 60.0

    def metrics(
        self, at: float, values: dict[str, Any], *, rank: int | None = 0, step: int | None = None, **more: Any
    ) -> None:
        said = {
            "at": BEGAN + at,
            "function": "train",
            "job": 1,
            "rank": rank,
            "node": rank,
            "generation": 1,
            "step": step,
        }
        self.lines.setdefault("metrics.jsonl", []).append(said | {"values": values} | more)

    def saved(self, at: float, step: int, size_bytes: int, *, node: int = 0, generation: int = 1) -> None:
        """Have a checkpoint told of by rank 0 of the first broadcast."""
        (packed,) = log_records.packed([log_records.saved(BEGAN + at, "digits", step, size_bytes)])
        pages = LoggedPages()
        pages.add(Batch(Origin("train", 1, 0, node, generation), packed, 0, BEGAN + at))
        self.told.append(pages.taken()["events.jsonl"])

    def sample(self, at: float, node: int, cpu: float, *, gpus: Sequence[dict[str, Any]] = ()) -> None:
        said = {
            "at": BEGAN + at,
            "node": node,
            "cpu": cpu,
            "cpus": 8,
            "memory_bytes": int(2e9 + 1e9 * cpu + 4e6 * at),
            "memory_total_bytes": 16 << 30,
            "disk_bytes": 40 << 30,
            "disk_total_bytes": 100 << 30,
            "received_bytes": int(3e6 * cpu),
            "sent_bytes": int(2e6 * cpu),
            "seconds": 5.0,
            "gpus": list(gpus),
        }
        self.lines.setdefault("system.jsonl", []).append(said)

    def write(self, *, ended: bool = True, exit_code: int = 0, error: dict[str, Any] | None = None) -> Run:
        run = f"20261125-083320-{self.name}-4f8a"
        assert name_in(run) == self.name
        directory = self.folder / run
        (directory / "logs").mkdir(parents=True)
        status = RunStatus(run, self.name, BEGAN)
        pages = Pages(status)
        for event in self.events:
            pages.add(Happened(event, event.at))
        for path, text in pages.taken().items():
            (directory / path).write_bytes(text + b"".join(self.told) * (path == EVENTS))
        for path, said in self.lines.items():
            (directory / path).write_text("".join(json.dumps(each) + "\n" for each in said))
        if ended:
            status.end(BEGAN + self.seconds, exit_code, error["type"] if error else "")
            result = {"exit": exit_code, "error": error, "took_s": self.seconds, "calls": {}, "spent_usd": 0.0}
            (directory / "result.json").write_text(json.dumps(result))
        (directory / "status.json").write_text(json.dumps(status.facts(BEGAN + self.seconds, 1.25, 3.5)))
        about = {
            "id": run,
            "name": self.name,
            "began": BEGAN,
            "argv": ["python", "train.py", "--epochs", "20"],
            "cwd": "/home/ada/digits",
            "python": "3.11.7",
            "platform": "Linux 6.1.0 x86_64",
            "versions": {"outrider": "0.1.0", "torch": "2.13.0"},
            "owner": {"user": "ada", "host": "workstation"},
            "spec": {"nodes": {"desired": 4}},
            "seeds": {"torch": 0},
            "git": {"commit": "edcc9d50a1b2c3d4", "branch": "main", "changed": True, "folder": "/home/ada/digits"},
        }
        (directory / "run.json").write_text(json.dumps(about))
        return Run(run, self.name, directory, read_json(directory / "status.json"))


def training(  # noqa: PLR0912  a play
    folder: Path,
    *,
    name: str = "train",
    nodes: int = 4,
    losses: int = 3,
    steps: int = 440,
    every: int = 20,
    seconds: float = 60.0,
    gpus: int = 0,
    ended: bool = True,
    exit_code: int = 0,
    error: dict[str, Any] | None = None,
    printed: Iterable[str] = (),
    log_every: int = 1,
    sample_s: float = 1.0,
) -> Run:
    """A broadcast over ``nodes`` that loses ``losses`` of them, and does the steps since a checkpoint again."""
    record, chance = Record(folder, name, seconds=seconds), random.Random(nodes)
    at, launch = 0.0, [*range(nodes)]
    add = record.events.append
    add(ev.PoolStarting("pool", "aws" if gpus else "local", nodes, nodes, at=BEGAN))
    for node in launch:
        add(ev.NodeLaunching(node, f"i-{node:04}", 1.2, at=BEGAN + 0.2))
    boot = seconds * 0.05
    for node in launch:
        add(ev.NodeReady(node, node, node + 1, nodes, at=BEGAN + boot * (0.6 + 0.4 * chance.random())))
    add(ev.PoolReady(nodes, nodes, at=BEGAN + boot))
    add(ev.BroadcastSubmitted(1, "train", at=BEGAN + boot))
    members, generation, number, step = list(launch), 1, nodes, 0
    saved: set[int] = set()
    pace = (seconds * 0.9 - boot) / (steps + losses * every * 0.75) * 0.9
    lose_at = [round((place + 1) * steps / (losses + 1)) for place in range(losses)]
    at = boot + 0.02
    add(ev.GenerationStarted(1, generation, tuple(members), tuple(range(nodes)), at=BEGAN + at))
    while step < steps:
        at += pace * (6 if step % every == 0 and step else 1)
        if step % log_every == 0:
            for rank in range(nodes):
                loss = 2.2 * math.exp(-step / (steps / 4)) + 0.05 + 0.04 * chance.random() * (1 + (rank == 2))
                record.metrics(
                    at + 0.001 * chance.random(),
                    {"loss": loss, "accuracy": 1 - loss / 2.6},
                    rank=rank,
                    step=step,
                    node=members[rank],
                    generation=generation,
                )
                if rank == 0:
                    add(
                        ev.TaskOutput(
                            1,
                            members[0],
                            0,
                            "stdout",
                            f"step {step} loss {loss:.4f}\n",
                            "train",
                            0,
                            nodes,
                            at=BEGAN + at,
                        )
                    )
        step += 1
        if step % every == 0 and step < steps and step not in saved:
            saved.add(step)
            record.saved(at + pace, step, 201_459, node=members[0], generation=generation)
        if lose_at and step == lose_at[0]:
            lose_at.pop(0)
            gone = members.index(chance.choice(members))
            add(ev.NodeSuspect(members[gone], "the connection was cut", at=BEGAN + at + pace))
            add(ev.NodeLost(members[gone], "its machine was preempted", at=BEGAN + at + 3 * pace))
            add(
                ev.GenerationLost(
                    1, generation, (members[gone],), "its machine was preempted", at=BEGAN + at + 3 * pace
                )
            )
            add(ev.NodeLaunching(number, f"i-{number:04}", 1.2, at=BEGAN + at + 4 * pace))
            add(ev.NodeReady(number, gone, nodes, nodes, at=BEGAN + at + 9 * pace))
            members[gone], number, generation, at = number, number + 1, generation + 1, at + 10 * pace
            add(ev.GenerationStarted(1, generation, tuple(members), tuple(range(nodes)), at=BEGAN + at))
            step = (step - 1) // every * every
    for text in printed:
        add(ev.TaskOutput(1, members[-1], nodes - 1, "stderr", text, "train", 0, nodes, at=BEGAN + at))
    if ended:
        add(
            ev.BroadcastFinished(
                1, generation, tuple(["returned" if not exit_code else "raised"] * nodes), at=BEGAN + at + pace
            )
        )
        add(ev.PoolClosing(at=BEGAN + seconds * 0.98))
        add(ev.PoolClosed(at=BEGAN + seconds))
    else:
        record.seconds = at
    for node in range(number):
        of = [each for each in record.events if getattr(each, "node", None) == node]
        first = next(each.at for each in of if isinstance(each, ev.NodeReady)) - BEGAN
        last = next((each.at for each in of if isinstance(each, ev.NodeLost)), BEGAN + at) - BEGAN
        time = first
        while time < last:
            busy = 0.75 + 0.2 * chance.random()
            cards = [
                {
                    "index": card,
                    "utilisation": busy,
                    "memory_bytes": 60 << 30,
                    "memory_total_bytes": 80 << 30,
                    "watts": 620 * busy,
                }
                for card in range(gpus)
            ]
            record.sample(time, node, busy / 3 if gpus else busy, gpus=cards)
            time += sample_s
    record.events.sort(key=lambda each: each.at)
    return record.write(ended=ended, exit_code=exit_code, error=error)
