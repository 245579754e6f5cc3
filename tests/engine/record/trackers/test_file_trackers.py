"""Trackers that write files, and W&B's: each point is there once, wherever the process that sends was killed."""

from __future__ import annotations

import json
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outrider import SpecError, trackers
from outrider.engine.record.runs.metrics import newest, read_metrics
from outrider.engine.record.runs.reader import Run
from outrider.engine.record.runs.tensorboard import crc32c, masked
from outrider.engine.record.trackers import feed, json_lines, wandb
from outrider.engine.record.trackers.base import Point, Tracker
from outrider.engine.record.trackers.feed import Feed
from outrider.engine.record.trackers.state_file import Cursor, StateFile

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from records import Record, training

Row = tuple[str, int | None, float]


class Killed(BaseException):
    """What no code of ours catches: the process is gone."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several deliveries of a small record."""
    monkeypatch.setattr(feed, "POINTS", 20)
    monkeypatch.setattr(feed, "CHUNK_BYTES", 2000)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = training(tmp_path / "runs", nodes=2, losses=1, steps=20, every=5)
    path = made.directory / "metrics.jsonl"
    said = [json.dumps(json.loads(line), separators=(",", ":")) for line in path.read_text().splitlines()]
    path.write_text("\n".join(said) + "\n")  # as a pool's writer has them
    (made.directory / "params.json").write_text(json.dumps({"lr": 0.1}))
    events = made.directory / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    placed = [
        {**each, "facts": {"zone": "us-east-1a"}} if each["event"] == "node_launching" else each for each in lines
    ]
    events.write_text("".join(json.dumps(each) + "\n" for each in placed))
    return made


def wanted(run: Run) -> list[Row]:
    """The points of rank 0, without those of steps that were redone."""
    found = newest(read_metrics(run.directory))
    return sorted((s.name, p.step, p.value) for s, points in found.items() if s.rank == 0 for p in points)


@contextmanager
def killed_at(number: int) -> Iterator[Callable[[], bool]]:
    """End the process at the write or the note of this number: half way through a write, before a note or after it."""
    count, write, save = 0, os.write, StateFile.save

    def now() -> bool:
        nonlocal count
        count += 1
        return count == number

    def half(file: int, content: Any) -> int:
        if now():
            write(file, bytes(content)[: len(content) // 2])
            raise Killed
        return write(file, content)

    def noted(self: StateFile, cursor: Cursor) -> None:
        if now():
            raise Killed
        save(self, cursor)
        if now():
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines.os, "write", half)
        patch.setattr(StateFile, "save", noted)
        yield lambda: count >= number


def sent_with_a_kill(run: Run, tracker: Tracker, number: int) -> bool:
    """Send a run, with a kill at this point, and again; return whether there was such a point."""
    with killed_at(number) as reached, suppress(Killed):
        Feed(run.directory, tracker).run()
    assert Feed(run.directory, tracker).run()
    return reached()


def lines(folder: Path, run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{run.id}.jsonl").read_text().splitlines()]


def forget(run: Run, folder: Path) -> None:
    for path in [*(run.directory / "trackers").glob("*"), *folder.rglob("*")]:
        if path.is_file():
            path.unlink()


def test_lines_of_json_have_the_whole_run_once_wherever_it_was_killed(run: Run, tmp_path: Path) -> None:
    folder, number = tmp_path / "elsewhere", 1
    while True:
        reached = sent_with_a_kill(run, trackers.JSONLines(folder), number)
        found = lines(folder, run)
        kinds = [each["kind"] for each in found]
        assert (kinds[0], kinds[-1], kinds.count("params")) == ("begun", "ended", 1), number
        points = [(each["name"], each["step"], each["value"]) for each in found if each["kind"] == "metric"]
        assert sorted(points) == wanted(run), number
        if not reached:
            break
        forget(run, folder)
        number += 1
    assert number > 20


def events(path: Path) -> list[bytes]:
    """The events of a file of TensorBoard's, all of them whole."""
    content, found = path.read_bytes(), []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        body, crc = content[12 : 12 + size], content[12 + size : 16 + size]
        assert struct.unpack("<I", crc)[0] == masked(crc32c(body))
        found.append(body)
        content = content[16 + size :]
    return found


def test_tensorboards_files_have_each_point_once_wherever_it_was_killed(run: Run, tmp_path: Path) -> None:
    folder, number = tmp_path / "elsewhere", 1
    tracker = trackers.TensorBoard(folder, ranks="all")
    with (run.directory / "metrics.jsonl").open("r+") as file:
        file.truncate(len("".join(file.readlines()[:24])))
    assert Feed(run.directory, tracker).run()
    whole = {path: events(path) for path in folder.rglob("events*")}
    assert sorted(path.parent.name for path in whole) == ["rank-000", "rank-001"]
    while True:
        forget(run, folder)
        reached = sent_with_a_kill(run, tracker, number)
        assert {path: events(path) for path in folder.rglob("events*")} == whole, number
        if not reached:
            break
        number += 1
    assert number > 15


def test_tensorboards_own_reader_finds_them(run: Run, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert Feed(run.directory, trackers.TensorBoard(tmp_path / "tb")).run()
    (path,) = (tmp_path / "tb").rglob("events*")
    read = reader.EventAccumulator(str(path.parent), size_guidance={"scalars": 0})
    read.Reload()
    found = [(name, each.step, each.value) for name in read.Tags()["scalars"] for each in read.Scalars(name)]
    assert sorted((name, step) for name, step, _ in found) == [(name, step) for name, step, _ in wanted(run)]


def test_a_generation_that_goes_back_says_so(tmp_path: Path) -> None:
    record = Record(tmp_path / "runs")
    for step, generation in ((1, 1), (2, 1), (2, 2)):
        record.metrics(step + generation, {f"m{generation}": 1.0}, step=step, generation=generation)
    assert Feed(record.write().directory, trackers.TensorBoard(tmp_path / "tb")).run()
    (path,) = (tmp_path / "tb").rglob("events*")
    assert sum(b"\x3a\x02\x08\x01" in event for event in events(path)) == 1


def test_a_disk_that_is_full_is_waited_for(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, full, write = tmp_path / "elsewhere", [True] * 3, os.write

    def failing(file: int, content: Any) -> int:
        if full:
            full.pop()
            write(file, bytes(content)[:7])
            raise OSError(28, "No space left on device", "elsewhere")
        return write(file, content)

    monkeypatch.setattr(json_lines.os, "write", failing)
    problems: list[str] = []
    sending = Feed(run.directory, trackers.JSONLines(folder), wait=lambda _: None,
                   on_progress=lambda each: problems.append(each.cursor.problem),
                   clock=iter(range(10_000_000)).__next__)  # fmt: skip
    assert sending.run()
    assert "elsewhere: No space left on device" in problems
    found = lines(folder, run)
    assert sorted((e["name"], e["step"], e["value"]) for e in found if e["kind"] == "metric") == wanted(run)


def test_what_a_folder_cannot_be_is_refused() -> None:
    for bad in ("", 7, "s3://bucket/runs"):
        with pytest.raises(SpecError, match="takes a folder of this computer"):
            trackers.JSONLines(bad)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="takes a folder of this computer"):
            trackers.TensorBoard(bad)  # type: ignore[arg-type]


# --- W&B, as a package that loses what it has not written when its process is killed ---------------------------------


class FakeWandb(types.ModuleType):
    """``wandb``: its runs in files of a folder, of which the newest ``late`` rows are written at the end alone."""

    late = 7

    class errors:  # noqa: N801
        class Error(Exception):
            pass

        class UsageError(Error):
            pass

    class Settings:
        model_fields: ClassVar[dict[str, object]] = {"silent": None}

        def __init__(self, **settings: Any) -> None:
            assert set(settings) <= {"silent", "base_url"}

    def __init__(self, server: dict[str, list[dict[str, Any]]]) -> None:
        super().__init__("wandb")
        self.server = server  # the rows of each run, online
        self.config: dict[str, Any] = {}
        self.tags: tuple[str, ...] = ()
        self.exit_code: int | None = None
        self.inits = 0

    def init(self, **options: Any) -> FakeRun:
        self.inits += 1
        return FakeRun(self, options)


class FakeRun:
    def __init__(self, of: FakeWandb, options: dict[str, Any]) -> None:
        self._of, self._id = of, options["id"]
        self.tags: tuple[str, ...] | None = tuple(options["tags"]) if options["tags"] else None
        self.config = types.SimpleNamespace(update=lambda values, **_: of.config.update(values))
        offline = options["mode"] == "offline"
        self._file = Path(options["dir"]) / "wandb" / f"offline-run-{of.inits}-{self._id}" / "rows" if offline else None
        if self._file is not None:
            self._file.parent.mkdir(parents=True)
        self._rows: list[dict[str, Any]] = []
        self.step = 0 if offline else len(of.server.setdefault(self._id, []))

    def define_metric(self, *_: Any, **__: Any) -> None:
        pass

    def log(self, row: dict[str, Any], *, step: int, commit: bool) -> None:
        assert commit
        self._rows.append({"_step": step, **row})
        self._write(self._of.late)

    def finish(self, *, exit_code: int) -> None:
        self._write(0)
        self._of.tags = self.tags or ()
        self._of.exit_code = exit_code

    def _write(self, late: int) -> None:
        while len(self._rows) > late:
            row = self._rows.pop(0)
            if self._file is None:
                self._of.server[self._id].append(row)
            else:
                with self._file.open("a") as file:
                    file.write(json.dumps(row) + "\n")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    made = FakeWandb({})
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setattr(wandb, "find_spec", lambda name: made)
    return made


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_wandb_has_each_point_once_wherever_it_was_killed(run: Run, tmp_path: Path, fake: FakeWandb, mode: Any) -> None:
    folder, number = tmp_path / "elsewhere", 1
    tracker = trackers.WandB(project="p", mode=mode, folder=folder)
    while True:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wandb.WandBSender, "close", lambda self: None)  # who is killed says nothing to W&B
            with killed_at(number) as reached, suppress(Killed):
                Feed(run.directory, tracker).run()
        assert Feed(run.directory, tracker).run()
        found = fake.server.get(run.id, [])
        for path in folder.rglob("rows"):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        points = [(name, row[wandb.STEP], value) for row in found for name, value in row.items()
                  if name not in ("_step", "_timestamp", wandb.STEP)]  # fmt: skip
        assert sorted(points) == wanted(run), number
        assert [row["_step"] for row in found] == list(range(len(found)))
        assert (fake.config["lr"], fake.exit_code) == (0.1, 0)
        assert [each["machine"] for each in fake.config["outrider"]["machines"]] == ["i-0000", "i-0001"]
        assert fake.tags == ("train", "zone:us-east-1a")
        assert not list((run.directory / "trackers").glob("*.journal.jsonl"))
        if not reached():
            break
        forget(run, folder)
        fake.server.clear()
        number += 1
    assert number > 15


def test_values_of_one_call_are_one_row() -> None:
    def point(name: str, step: int | None, at: float, value: float = 1.0) -> Point:
        return Point(name, value, step, at, 0, 0, "train", 1, 1)

    found = list(wandb.rows([point("a", 1, 1.0), point("b", 1, 1.0, float("nan")), point("a", 1, 2.0),
                             point("a", None, 2.0), point("a", None, 2.0)]))  # fmt: skip
    assert [(row["step"], [*row["row"]]) for row in found] == [
        (1, ["a", "b"]), (1, ["a"]), (None, ["a"]), (None, ["a"]),
    ]  # fmt: skip
    assert found[0]["row"]["b"] == "nan"


def test_without_its_package_wandb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match="pip install wandb"):
        trackers.WandB(project="p")


def test_options_of_wandb_that_mean_nothing_are_refused(fake: FakeWandb) -> None:
    for options, said in (({"mode": "maybe"}, "mode"), ({"project": 7}, "takes a text"), ({"ranks": "some"}, "ranks")):
        with pytest.raises(SpecError, match=said):
            trackers.WandB(**options)  # type: ignore[arg-type]
    assert "secret" not in repr(trackers.WandB(api_key="secret"))
