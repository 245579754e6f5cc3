"""What tasks log becomes lines, with whose it is; what is lost or no record is told."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outrider.engine.api.secrets import Scrubber
from outrider.engine.api.sink import Origin
from outrider.engine.record.runs import logged as log_writer
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.logged import Batch, LoggedPages, LogWriter
from outrider.engine.record.runs.metrics import Logged, read_metrics
from outrider.engine.wire import log_records as records

RANK = Origin("train", 3, 1, 2, 4)
ALONE = Origin("evaluate", 5, None, 0, 1)


def batch(*logged: records.Packed, origin: Origin = RANK, dropped: int = 0) -> Batch:
    (data,) = records.packed(logged)
    return Batch(origin, data, dropped, 9.0)


def told(pages: LoggedPages) -> dict[str, list[dict[str, Any]]]:
    return {path: [json.loads(line) for line in text.splitlines()] for path, text in pages.taken().items()}


def test_lines_say_whose_they_are() -> None:
    pages = LoggedPages()
    pages.add(batch(records.metrics(1.5, 7, {"loss": 0.25}), records.text(1.5, None, "sample", "two\nlines")))
    pages.add(batch(records.metrics(2.5, None, {"a": math.nan, "b": math.inf, "c": -math.inf}), origin=ALONE))
    whose = {"function": "train", "job": 3, "rank": 1, "node": 2, "generation": 4}
    assert told(pages) == {
        "metrics.jsonl": [
            {"at": 1.5, **whose, "step": 7, "values": {"loss": 0.25}},
            {"at": 2.5, "function": "evaluate", "job": 5, "rank": None, "node": 0, "generation": 1, "step": None,
             "values": {"a": "nan", "b": "inf", "c": "-inf"}},
        ],
        "texts.jsonl": [{"at": 1.5, **whose, "step": None, "name": "sample", "text": "two\nlines"}],
    }  # fmt: skip
    assert told(pages) == {}


def test_a_checkpoint_is_an_event() -> None:
    pages = LoggedPages(lambda text: text.replace("hunter2", "****"))
    pages.add(batch(records.saved(1.5, "of-hunter2", 700, 4096)))
    whose = {"function": "train", "job": 3, "rank": 1, "node": 2, "generation": 4}
    saved = {"event": "checkpoint_saved", "at": 1.5, **whose, "name": "of-****", "step": 700, "size_bytes": 4096}
    assert told(pages) == {"events.jsonl": [saved]}


def test_the_newest_value_of_a_param_counts() -> None:
    pages = LoggedPages()
    assert pages.changed_params() is None
    pages.add(batch(records.params(1.0, '{"lr": 0.1, "layers": [1, NaN]}')))
    pages.add(batch(records.params(2.0, '{"lr": 0.2}'), origin=ALONE))
    assert pages.changed_params() == {"lr": 0.2, "layers": [1, "nan"]}
    assert pages.changed_params() is None


def test_secrets_are_hidden_in_all_of_it() -> None:
    pages = LoggedPages(lambda text: text.replace("hunter2", "****"))
    pages.add(
        batch(
            records.metrics(1.0, 1, {"hunter2": 1.0}),
            records.text(1.0, 1, "hunter2", "it is hunter2"),
            records.params(1.0, '{"hunter2": {"hunter2": "hunter2"}}'),
        )
    )
    assert "hunter2" not in f"{pages.taken()}{pages.changed_params()}"


@pytest.mark.parametrize("secret", ["1795", "step", "null", "e-05", "values", '":'])
def test_a_secret_that_looks_like_a_part_of_a_line_costs_no_metrics(secret: str) -> None:
    pages = LoggedPages(Scrubber([secret]))
    pages.add(batch(records.metrics(1795600897.25, None, {"loss": 1.5e-05, f"a {secret} b": 1795.0})))
    line = pages.taken()["metrics.jsonl"].splitlines()[0]
    said = json.loads(line)
    assert (said["at"], said["step"], said["function"]) == (1795600897.25, None, "train")
    assert said["values"]["loss"] == 1.5e-05
    hidden = "a **** b" if len(secret) >= 4 else f"a {secret} b"
    assert said["values"] == {"loss": 1.5e-05, hidden: 1795.0}


def test_what_is_lost_is_told_with_its_number() -> None:
    pages = LoggedPages()
    pages.add(Batch(RANK, msgpack.packb([[0, 1.0, 1, {"loss": "high"}], [9], [0, 1.0, 1, {}]]), 12, 3.0))
    pages.add(Batch(ALONE, b"{", 0, 4.0))
    events = told(pages)["events.jsonl"]
    assert [(each["event"], each["function"], each["count"]) for each in events] == [
        ("records_lost", "train", 12),
        ("records_lost", "train", 2),
        ("records_lost", "evaluate", 1),
    ]


def test_a_record_has_room_for_so_many_params(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.engine.record.runs.logged.PARAMS_MOST", 2)
    pages = LoggedPages()
    pages.add(batch(records.params(1.0, '{"a": 1, "b": 2, "c": 3}')))
    pages.add(batch(records.params(1.0, '{"a": 4}')))
    assert pages.changed_params() == {"a": 4, "b": 2}
    assert told(pages)["events.jsonl"][0]["count"] == 1


def test_params_have_room_for_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a node that is not to be trusted, or that change with each step, would fill this program's memory."""
    monkeypatch.setattr("outrider.engine.record.runs.logged.PARAMS_CHARS", 10)
    pages = LoggedPages()
    for said in ('{"a": "12345"}', '{"b": "12345"}', '{"a": 1}', '{"b": "12345"}', '{"c": 1}'):
        pages.add(batch(records.params(1.0, said)))
    assert pages.changed_params() == {"a": 1, "b": "12345"}
    assert [each["count"] for each in told(pages)["events.jsonl"]] == [1, 1]


@pytest.fixture
def files(folder: Path) -> RecordFiles:
    return RecordFiles.make(folder, "train", time.time())


@pytest.fixture
def log(files: RecordFiles) -> LogWriter:
    log = LogWriter(str, lambda: None)
    log.opened(files)
    return log


def artifact(name: str, content: bytes, digest: str = "0a" * 32) -> Batch:
    return batch(records.artifact(1.0, name, len(content), digest))


def read(files: RecordFiles, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (files.directory / name).read_text().splitlines()]


def test_artifacts_have_files_of_their_own_with_safe_names(log: LogWriter, files: RecordFiles) -> None:
    names = ["best.pt", "best.pt", "../../etc/passwd", ".hidden", "a/b.tar.gz", "a/b.tar.gz", "\x1b[2J", "x" * 120]
    for number, name in enumerate(names):
        log.put_artifact(artifact(name, bytes([number])), bytes([number]))
    log.end(files)
    kept = read(files, "artifacts.jsonl")
    assert [each["name"] for each in kept] == names
    paths = [each["path"] for each in kept]
    assert paths[:6] == [
        f"artifacts/{name}" for name in ("best.pt", "best-2.pt", "etc-passwd", "hidden", "a-b.tar.gz", "a-b-2.tar.gz")
    ]
    assert [(files.directory / path).read_bytes() for path in paths] == [bytes([number]) for number in range(8)]
    assert {stat.S_IMODE(each.stat().st_mode) for each in (files.directory / "artifacts").iterdir()} == {0o600}
    assert len(read(files, "events.jsonl")) == 8  # none has the digest that was told


def test_no_artifact_is_added_to_another_that_has_the_name_which_its_number_makes(
    log: LogWriter, files: RecordFiles
) -> None:
    names = ["best.pt", "best.pt", "best-2.pt", "BEST.pt", "best.pt"]
    for number, name in enumerate(names):
        log.put_artifact(artifact(name, bytes([number])), bytes([number]))
    log.end(files)
    paths = [each["path"] for each in read(files, "artifacts.jsonl")]
    assert paths == [f"artifacts/{name}" for name in ("best.pt", "best-2.pt", "best-2-2.pt", "BEST-3.pt", "best-4.pt")]
    assert [(files.directory / path).read_bytes() for path in paths] == [bytes([number]) for number in range(5)]


def test_the_file_of_an_artifact_is_not_named_after_a_secret(files: RecordFiles) -> None:
    log = LogWriter(Scrubber(["hunter2"]), lambda: None)
    log.opened(files)
    log.put_artifact(artifact("hunter2.pt", b"x"), b"x")
    log.end(files)
    assert [each.name for each in (files.directory / "artifacts").iterdir()] == ["pt"]
    assert "hunter2" not in (files.directory / "artifacts.jsonl").read_text()


def test_an_artifact_for_which_the_disk_has_no_room_is_lost_alone(
    log: LogWriter, files: RecordFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = os.statvfs(files.directory)
    monkeypatch.setattr("outrider.engine.record.runs.files.KEEP_FREE_BYTES", 0)
    free = disk.f_bavail * disk.f_frsize

    class Large(bytes):
        def __len__(self) -> int:
            return 2 * free

    log.put_artifact(artifact("large", b"x"), Large(b"x"))
    log.put(batch(records.metrics(1.0, 1, {"loss": 1.0})))
    log.end(files)
    (event,) = read(files, "events.jsonl")
    assert (event["event"], event["count"]) == ("records_lost", 1)
    assert "'large' could not be written: No space left" in event["why"]
    assert read_metrics(files.directory) == [Logged(1.0, "train", 3, 1, 2, 4, 1, {"loss": 1.0})]


def test_what_the_disk_does_not_take_in_time_is_counted(
    log: LogWriter, files: RecordFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = batch(records.metrics(1.0, 1, {"loss": 1.0}))
    monkeypatch.setattr(log_writer, "BACKLOG_BYTES", 3 * len(one.data))
    for _ in range(10):
        log.put(one)
    log.write(files)
    log.put(one)
    log.end(files)
    assert len(read_metrics(files.directory)) == 4
    (event,) = read(files, "events.jsonl")
    assert (event["count"], event["rank"]) == (7, 1)
