"""`outrider top` shows what nodes are used for: once, or until the run has ended or a key is pressed."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from outrider.actors.events import GpuSample, NodeSampled
from outrider.engine.api.quantities import size
from outrider.engine.cli.top import BARS, NO_BAR, SHOWN, Usage, View, curve, shown
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.lines import SYSTEM, sample_line
from outrider.engine.record.runs.reader import run_of
from outrider.providers.shared.pool_lock import Owner

if TYPE_CHECKING:
    from .conftest import Outrider

GB = 1 << 30
GPU = GpuSample(0, 0.97, 66 * GB, 80 * GB, 641.2)
SAMPLE = NodeSampled(0, 5.0, 0.5, 8.0, 3 * GB, 31 * GB, 1, 2, 10_000_000, 500, (GPU,), at=100.0)


def text(usage: Usage, now: float, rows: int = 99, columns: int = 100) -> str:
    console = Console(file=io.StringIO(), width=columns)
    console.print(shown(usage, "train · running", now, rows, columns))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines(usage: Usage, now: float, rows: int = 99, columns: int = 100) -> list[str]:
    return [" ".join(line.split()) for line in text(usage, now, rows, columns).splitlines()]


def of(*samples: NodeSampled) -> Usage:
    usage = Usage()
    usage.add(samples)
    return usage


def test_a_line_for_the_processors_and_one_for_each_gpu() -> None:
    before = replace(SAMPLE, at=95.0, cpu=0.0, gpus=(replace(GPU, utilisation=None),))
    assert lines(of(before, SAMPLE), 101.0) == [
        "train · running",
        "node now memory network, power",
        "0 8 cpus 50% ▁▅ 3.0 of 31.0 GB in 2.0 MB/s, out 100 B/s",
        "gpu 0 97% ·█ 66.0 of 80.0 GB 641 W",
    ]


def test_what_is_not_known_is_said_to_be_not_known() -> None:
    gpu = GpuSample(1, None, 0, 0, None)
    assert lines(of(replace(SAMPLE, gpus=(gpu,))), 101.0)[3] == "gpu 1 ? · ?"
    assert "no samples yet" in text(Usage(), 101.0)


def test_a_node_that_was_not_heard_of_for_a_while_says_so() -> None:
    assert lines(of(SAMPLE, replace(SAMPLE, node=1, at=160.0)), 160.0)[2].endswith("last heard of 1:00 ago")


def test_a_small_terminal_shows_the_first_nodes_and_shorter_curves() -> None:
    usage = of(*(replace(SAMPLE, node=node, at=float(at)) for node in range(5) for at in range(100)))
    told = lines(usage, 99.0, rows=5, columns=80)
    assert told[-1] == "and 3 nodes more"
    assert len(told) == 2 + 4 + 1
    assert max(map(len, text(usage, 99.0, columns=80).splitlines())) <= 80
    assert "…" not in text(usage, 99.0, columns=80)
    assert "▅" * SHOWN in text(usage, 99.0, columns=120)


def test_bars_and_sizes() -> None:
    assert curve([0.0, 0.124, 0.126, 0.99, 1.0, None]) == f"{BARS[0]}{BARS[0]}{BARS[1]}{BARS[7]}{BARS[7]}{NO_BAR}"
    assert [size(each) for each in (0, 999, 1000, 99_949, 123_456_789, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "99.9 kB",
        "123 MB",
        "5000 GB",
    ]


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordFiles]:
    """A living run with two nodes."""
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")
    made, now = RecordFiles.make(tmp_path / "state" / "runs", "train", 1e9), time.time()
    made.replace("status.json", {"state": "running", "began": now})
    made.append({SYSTEM: b"".join(sample_line(replace(SAMPLE, node=node, at=now), now) for node in (1, 0))})
    made.append({SYSTEM: sample_line(replace(SAMPLE, cpu=0.25, at=now), now)})
    yield made
    made.close()


def test_elsewhere_than_on_a_terminal_it_is_shown_once(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("top", "train") == 0
    said = outrider.said()
    assert f"{run.directory.name} · running" in said
    assert "25%" in said
    assert "\x1b" not in said


def test_json_has_the_newest_sample_of_each_node(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("top", run.directory.name, "--json") == 0
    told = json.loads(outrider.said())
    assert [(each["node"], each["cpu"], each["gpus"][0]["watts"]) for each in told] == [
        (0, 0.25, 641.2),
        (1, 0.5, 641.2),
    ]


def test_a_run_that_was_killed_is_shown_with_its_last_samples(run: RecordFiles, outrider: Outrider) -> None:
    run.close()
    assert outrider("top", "train", "--once") == 0
    said = outrider.said()
    assert "its owner died" in said
    assert "last heard of" not in said


def test_a_run_of_another_computer_has_an_end_too(run: RecordFiles) -> None:
    owner = asdict(replace(Owner.this(run.directory), host="other", boot="other", inode=0))
    run.replace("run.json", {"owner": owner})
    run.close()
    view = View(run_of(run.directory))
    view.read()
    assert not view.ended
    run.replace("status.json", {"state": "ended", "began": 1e9})
    view.read()
    assert view.ended


def test_there_may_be_no_such_run_or_no_samples(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("top", "other") == 2
    (run.directory / SYSTEM).unlink()
    assert outrider("top", "train", "--json") == 0
    assert json.loads(outrider.said()) == []
    assert outrider("top", "train") == 0
    assert "no samples yet" in outrider.said()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("leave", [b"q", signal.SIGINT])
def test_on_a_terminal_it_goes_on_until_one_leaves_and_the_terminal_is_as_before(leave: bytes | signal.Signals) -> None:
    with Top() as (process, terminal, before):
        seen = _until(terminal, r"25%")
        if isinstance(leave, bytes):
            os.write(terminal, leave)
        else:
            process.send_signal(leave)
        assert process.wait(60) == 0, seen
        assert termios.tcgetattr(terminal) == before


def test_on_a_terminal_new_samples_are_shown_and_the_end_of_the_run_ends_it(run: RecordFiles) -> None:
    with Top() as (process, terminal, _):
        _until(terminal, r"25%")
        run.append({SYSTEM: sample_line(replace(SAMPLE, cpu=0.75, at=time.time()), 0.0)})
        _until(terminal, r"75%")
        run.close()
        _until(terminal, r"its owner died")
        assert process.wait(60) == 0


class Top:
    """The command on a terminal, which is as it says before the command begins."""

    def __enter__(self) -> tuple[subprocess.Popen[bytes], int, list[Any]]:
        self.ours, its = pty.openpty()
        before = termios.tcgetattr(self.ours)
        program = "import sys; from outrider.engine.cli.main import main; sys.argv[1:] = ['top', 'train']; main()"
        env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        self.process = subprocess.Popen([sys.executable, "-c", program], stdin=its, stdout=its, stderr=its, env=env)
        os.close(its)
        return self.process, self.ours, before

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def _until(terminal: int, found: str, within_s: float = 60.0) -> str:
    seen, until = "", time.monotonic() + within_s
    while not re.search(found, seen):
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 65536).decode(errors="replace")
    return seen
