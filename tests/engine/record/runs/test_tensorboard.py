"""TensorBoard's files have every number of the record, and TensorBoard itself reads them so."""

from __future__ import annotations

import json
import math
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.record.runs import tensorboard
from outrider.engine.record.runs.tensorboard import TensorBoardFiles, crc32c, masked, write_tensorboard


def line(step: int | None, generation: int = 1, rank: int | None = 0, **values: Any) -> str:
    said = {"at": 100.5 + (step or 0), "function": "train", "job": 1, "rank": rank, "node": 0, "generation": generation}
    return json.dumps({**said, "step": step, "values": values}) + "\n"


LINES = [
    *(line(step, loss=1 / (step + 1), accuracy=step / 10) for step in range(4)),
    *(line(step, generation=2, loss=2 / (step + 1), accuracy=step / 20) for step in range(2, 6)),
    *(line(step, rank=None, odd="nan", huge=1e300, least="-inf") for step in (-1, 2**40)),
    line(None, rank=7, unnumbered=1),
    line(None, rank=7, unnumbered=2),
]


def events(path: Path) -> list[bytes]:
    """The records of a file, whose checksums are right."""
    data, found = path.read_bytes(), []
    while data:
        size, check = struct.unpack("<QI", data[:12])
        assert check == masked(crc32c(data[:8]))
        event, (check,) = data[12 : 12 + size], struct.unpack("<I", data[12 + size : 16 + size])
        assert check == masked(crc32c(event))
        found.append(event)
        data = data[16 + size :]
    return found


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of every catalogue of CRCs
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_files_grow_with_the_record_and_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, metrics = TensorBoardFiles(tmp_path), tmp_path / "metrics.jsonl"
    assert files.catch_up(1.0)
    assert not (tmp_path / "tb").exists()
    monkeypatch.setattr(tensorboard, "CHUNK", 300)
    for text in LINES:
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            with metrics.open("a") as file:
                file.write(part)
            while not files.catch_up(0.0):
                pass
    (rank,) = (tmp_path / "tb" / "train-1" / "rank-000").iterdir()
    assert rank.name.startswith("events.out.tfevents.0000000100.")
    modes = {stat.S_IMODE(each.stat().st_mode) for each in ((tmp_path / "tb"), *(tmp_path / "tb").rglob("*"))}
    assert modes == {0o700, 0o600}
    grown = {path.parent: events(path) for path in (tmp_path / "tb").rglob("events*")}
    assert len(grown[rank.parent]) == 1 + 4 + 1 + 4  # a version, and a restart
    write_tensorboard(tmp_path)
    assert {path.parent: events(path) for path in (tmp_path / "tb").rglob("events*")} == grown


def test_a_map_of_many_tasks_makes_so_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MOST_FOLDERS", 3)
    told = [line(step, rank=rank, loss=1.0) for step in range(2) for rank in range(5)]
    (tmp_path / "metrics.jsonl").write_text("".join(told))
    write_tensorboard(tmp_path)
    files = sorted((tmp_path / "tb").rglob("events.*"))
    assert [file.parent.name for file in files] == ["rank-000", "rank-001", "rank-002"]
    assert {len(events(file)) for file in files} == {3}


def test_tensorboard_finds_every_number(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "metrics.jsonl").write_text("".join(LINES))
    write_tensorboard(tmp_path)

    def scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
        read = accumulators.EventAccumulator(str(tmp_path / "tb" / folder))
        read.Reload()
        return {tag: [(each.step, each.value) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]}

    rank = scalars("train-1/rank-000")
    assert rank["loss"] == [
        (step, pytest.approx(value)) for step, value in enumerate([1, 1 / 2, 2 / 3, 2 / 4, 2 / 5, 2 / 6])
    ]  # of redone steps the newest
    assert [step for step, _ in rank["accuracy"]] == list(range(6))
    others = scalars("train-1")
    assert [step for step, _ in others["huge"]] == [-1, 2**40]
    assert all(math.isnan(value) for _, value in others["odd"])
    assert {value for _, value in others["huge"]} == {math.inf}
    assert {value for _, value in others["least"]} == {-math.inf}
    assert scalars("train-1/rank-007") == {"unnumbered": [(0, 1.0), (1, 2.0)]}
