"""What a driver prints is kept in parts, of which the first and the newest stay, and has no secret in it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.engine.api.secrets import Scrubber
from outrider.engine.scripts import driver_log
from outrider.engine.scripts.driver_log import CleanLines, StandardOutput

PART = 300


@pytest.fixture
def standard() -> Iterator[tuple[int, int]]:
    """Two descriptors that are not those of the tests."""
    files = (os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY))
    yield files
    for file in files:
        os.close(file)


@pytest.fixture
def parts(tmp_path: Path, standard: tuple[int, int]) -> Iterator[StandardOutput]:
    made = StandardOutput(tmp_path / "driver.log", PART, standard)
    yield made
    os.close(made._file)


def printing(parts: StandardOutput, file: int) -> CleanLines:
    return CleanLines(os.fdopen(file, "w", closefd=False), str, parts.make_room)


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_the_first_part_and_the_newest_stay(tmp_path: Path, parts: StandardOutput, standard: tuple[int, int]) -> None:
    out, err = (printing(parts, file) for file in standard)
    for number in range(300):
        print(f"line {number}", file=(out, err)[number % 2])
    found = sorted(sizes(tmp_path), key=lambda name: (len(name), name))
    assert found[0] == "driver.log"
    assert len(found) == 1 + driver_log.NEWEST
    assert max(sizes(tmp_path).values()) <= PART
    assert (tmp_path / "driver.log").read_text().startswith("line 0\nline 1\n")
    newest = (tmp_path / found[-1]).read_text().splitlines()
    assert newest[0].startswith("outrider: part ")
    assert newest[-1] == "line 299"
    earlier = (tmp_path / found[-2]).read_text().splitlines()
    assert int(newest[1].split()[1]) == int(earlier[-1].split()[1]) + 1


def test_what_others_write_to_the_descriptors_counts_and_follows(
    tmp_path: Path, parts: StandardOutput, standard: tuple[int, int]
) -> None:
    os.write(standard[0], b"x" * PART)
    print("said", file=printing(parts, standard[0]))
    os.write(standard[1], b"an error\n")
    assert (tmp_path / "driver.1.log").read_text().splitlines()[1:] == ["said", "an error"]


def test_a_descriptor_that_the_program_has_turned_elsewhere_is_left_alone(
    tmp_path: Path, parts: StandardOutput, standard: tuple[int, int]
) -> None:
    with (tmp_path / "own").open("wb") as own:
        os.dup2(own.fileno(), standard[1])
    os.write(standard[0], b"x" * PART)
    print("said", file=printing(parts, standard[0]))
    os.write(standard[1], b"mine")
    assert (tmp_path / "own").read_text() == "mine"


def test_a_disk_that_takes_no_further_part_ends_no_print(
    tmp_path: Path, parts: StandardOutput, standard: tuple[int, int]
) -> None:
    (tmp_path / "driver.1.log").symlink_to("nowhere")  # which is not followed
    for _ in range(100):
        print("said", file=printing(parts, standard[0]))
    assert (tmp_path / "driver.log").stat().st_size == 500


@pytest.mark.parametrize("ends", [True, False])
def test_of_a_line_without_an_end_the_beginning_is_kept_without_secrets(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_log, "LINE_CHARS", 100)
    monkeypatch.setattr(driver_log, "SHOWN_CHARS", 20)
    written = io.StringIO()
    lines = CleanLines(written, Scrubber(["hunter2-and-more"]), lambda _: None)
    for piece in ("0123456789", "01234567hunter2", "-and-more", *["x" * 10] * 100):
        lines.write(piece)
    if ends:
        lines.write("tail\nnext hunter2")
        lines.write("-and-more\n")
    lines._put("")
    said = written.getvalue()
    assert said.startswith("012345678901234567**\noutrider: the rest of this line is left out")
    assert said.count("\n") == (3 if ends else 2)
    assert said.endswith("\nnext ****\n" if ends else "\n")
    assert "x" not in said.replace("next", "")
