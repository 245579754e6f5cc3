"""`outrider report` writes one file and says where it is."""

from __future__ import annotations

import os
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.engine.api.errors import SpecError
from outrider.engine.cli.main import app
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.status import RunStatus

if TYPE_CHECKING:
    from .conftest import Outrider


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    made = RecordFiles.make(tmp_path / "state" / "runs", "train", 100.0)
    status = RunStatus(made.directory.name, "train", 100.0)
    status.end(110.0, 0, "")
    made.replace("status.json", status.facts(110.0, 0.0, 0.0))
    made.close()
    return made.directory


def test_the_report_is_in_the_record(record: Path, outrider: Outrider) -> None:
    assert outrider("report", "train") == 0
    assert outrider.said() == f"{record / 'report.html'}\n"
    assert "<h1>train</h1>" in (record / "report.html").read_text()


def test_it_is_written_elsewhere_and_opened(
    record: Path, tmp_path: Path, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    assert outrider("report", "train", "--open", "--output", str(tmp_path / "my report.html")) == 0
    assert opened == [(tmp_path / "my report.html").as_uri()]
    assert not (record / "report.html").exists()


def test_a_place_that_cannot_be_written_is_told(
    record: Path, tmp_path: Path, outrider: Outrider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outrider("report", "train", "-o", str(tmp_path / "no" / "a.html")) == 1
    assert "cannot be written to" in capsys.readouterr().err
    (record / "report.html").mkdir()
    assert outrider("report", "train") == 1
    assert "--output FILE writes it elsewhere" in capsys.readouterr().err


def test_programs_are_told_where_it_is(record: Path, tmp_path: Path, outrider: Outrider) -> None:
    path = record / "report.html"
    assert outrider.json("report", "train") == {"id": record.name, "path": str(path), "size_bytes": path.stat().st_size}
    (tmp_path / "out").symlink_to("/dev/stdout")
    with pytest.raises(SpecError, match="is no file of its own"):
        app(["report", "train", "--json", "-o", str(tmp_path / "out")])


def test_what_is_no_file_stays_what_it_is(record: Path, tmp_path: Path, outrider: Outrider) -> None:
    """As root, a file in the place of /dev/null or /dev/stdout would break the computer."""
    device, link, fifo = tmp_path / "null", tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(tmp_path / "behind.html")
    device.symlink_to("/dev/null")
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    reader.start()
    for path in (link, device, fifo):
        assert outrider("report", "train", "-o", str(path)) == 0
        assert path.is_symlink() or path.is_fifo()
    reader.join()
    assert "<h1>train</h1>" in read[0]
    assert "<h1>train</h1>" in (tmp_path / "behind.html").read_text()


def test_no_such_run(record: Path, outrider: Outrider) -> None:
    assert outrider("report", "other") == 2
