"""What a driver prints is kept in parts, of which the first and the newest stay, and has no secret in it."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.engine.api.secrets import Scrubber
from outrider.engine.scripts import driver
from outrider.engine.scripts.driver import CleanLines, Descriptor, StandardOutput

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
    return CleanLines(Descriptor(file), str, parts.make_room)


def held(file: str) -> int:
    """How many descriptors this process has of a file: other tests' threads may open and close others meanwhile."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found += str(link.readlink()) == file
    return found


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_the_first_part_and_the_newest_stay(tmp_path: Path, parts: StandardOutput, standard: tuple[int, int]) -> None:
    out, err = (printing(parts, file) for file in standard)
    for number in range(300):
        print(f"line {number}", file=(out, err)[number % 2])
    found = sorted(sizes(tmp_path), key=lambda name: (len(name), name))
    assert found[0] == "driver.log"
    assert len(found) == 1 + driver.NEWEST
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


def test_what_a_full_disk_does_not_take_ends_no_print_and_is_counted(
    tmp_path: Path, parts: StandardOutput, standard: tuple[int, int]
) -> None:
    out = printing(parts, standard[0])
    print("before", file=out)
    present, full = os.dup(standard[0]), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, standard[0])
    out.write("lost\nlost too\nand a")
    print("s well", file=out)
    os.dup2(present, standard[0])
    os.close(present)
    os.close(full)
    print("after", file=out)
    print("all is well", file=out)
    said = "\noutrider: up to 3 lines are missing here, which could not be written\n"
    assert (tmp_path / "driver.log").read_text() == f"before\n{said}after\nall is well\n"


def test_a_full_disk_takes_no_descriptor_for_each_line(
    parts: StandardOutput, standard: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.write(standard[0], b"x" * PART)
    monkeypatch.setattr(driver, "_opened", lambda _: os.open("/dev/full", os.O_WRONLY))
    out = printing(parts, standard[0])
    for _ in range(10):
        print("said", file=out)
    assert held("/dev/full") == 0


def test_a_disk_that_loses_the_part_before_costs_no_further_one(
    tmp_path: Path, parts: StandardOutput, standard: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    close, file = os.close, parts._file

    def fails(each: int) -> None:
        close(each)
        if each == file:
            raise OSError(errno.EDQUOT, "as of a file system in the network")

    os.write(standard[0], b"x" * PART)
    monkeypatch.setattr(os, "close", fails)
    print("said", file=printing(parts, standard[0]))
    monkeypatch.undo()
    assert parts._file != file, "which may be another's by now"
    assert (tmp_path / "driver.1.log").read_text().endswith("said\n")


def test_one_write_of_many_lines_goes_into_parts(
    tmp_path: Path, parts: StandardOutput, standard: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SHOWN_CHARS", 50)
    out = printing(parts, standard[0])
    out.write("begins ")
    out.write("".join(f"line {number}\n" for number in range(300)) + "has no end")
    out.close()
    found = sizes(tmp_path)
    assert len(found) == 1 + driver.NEWEST
    assert max(found.values()) <= PART
    assert (tmp_path / "driver.log").read_text().startswith("begins line 0\nline 1\n")
    newest = sorted(found, key=lambda name: (len(name), name))[-2:]
    lines = [line for name in newest for line in (tmp_path / name).read_text().split("\n")]
    assert [line for line in lines if line and not line.startswith("outrider: part ")][-3:] == [
        "line 298", "line 299", "has no end",
    ]  # fmt: skip


@pytest.mark.parametrize(("longer", "cut"), [(0, False), (1, True)])
def test_a_whole_line_that_is_too_long_is_cut_without_secrets(
    longer: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LINE_CHARS", 100)
    monkeypatch.setattr(driver, "SHOWN_CHARS", 20)
    written = io.StringIO()
    line = "0123456789" * 10 + "x" * longer
    lines = CleanLines(written, Scrubber(["678901234"]), lambda _: None)
    lines.write(f"before\n{line}\nafter\n\n")
    lines.close()
    kept = line.replace("678901234", "****")
    assert written.getvalue() == f"before\n{kept}\nafter\n\n", "what is hidden does not count"
    lines = CleanLines(written := io.StringIO(), str, lambda _: None)
    lines.write(f"before\n{line}\nafter\n\n")
    lines.close()
    said = "\noutrider: the rest of this line is left out, as it is longer than 100"
    assert written.getvalue() == f"before\n{line[:20] + said if cut else line}\nafter\n\n"


@pytest.mark.parametrize("ends", [True, False])
def test_of_a_line_without_an_end_the_beginning_is_kept_without_secrets(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LINE_CHARS", 100)
    monkeypatch.setattr(driver, "SHOWN_CHARS", 20)
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
