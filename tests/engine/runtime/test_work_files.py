"""Files of a work folder as parts, and parts as files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.runtime.work_files import (
    ITEM_BYTES,
    PIECE_BYTES,
    FileWriter,
    grouped,
    matching,
    send_files,
    take_files,
)
from outrider.engine.wire import values


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("a.pt", "log/b.txt", "log/deep/c.pt", "log/.hidden"):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    {
        "log": {"log/b.txt", "log/deep/c.pt", "log/.hidden"},
        "log/": {"log/b.txt", "log/deep/c.pt", "log/.hidden"},
        "log/**": {"log/b.txt", "log/deep/c.pt", "log/.hidden"},
        "log/*": {"log/b.txt", "log/deep/c.pt", "log/.hidden"},
        "**": {"a.pt", "log/b.txt", "log/deep/c.pt", "log/.hidden"},
        ".": {"a.pt", "log/b.txt", "log/deep/c.pt", "log/.hidden"},
        "**/*.pt": {"a.pt", "log/deep/c.pt"},
        "*.pt": {"a.pt"},
        "a.pt": {"a.pt"},
        "lo?/deep": {"log/deep/c.pt"},
        "nothing": set(),
    }.items(),
)
@pytest.mark.usefixtures("work")
def test_a_pattern_is_a_file_a_folder_or_a_glob(pattern: str, names: set[str]) -> None:
    found = [*matching(pattern)]
    assert set(found) == names
    assert len(found) == len(names), "each once"


@pytest.mark.usefixtures("work")
def test_links_to_files_come_as_files_and_nothing_that_is_no_file_comes() -> None:
    Path("link").symlink_to("a.pt")
    Path("folder").symlink_to("log")
    Path("loop").symlink_to(".")
    Path("nowhere").symlink_to("gone")
    os.mkfifo("fifo")
    Path("zero").symlink_to("/dev/zero")
    names = [part[1] for item in send_files.local("**") for part in item if part[0] == "file"]
    assert set(names) == {"a.pt", "link", "log/b.txt", "log/deep/c.pt", "log/.hidden"}


@pytest.mark.usefixtures("work")
def test_a_link_to_a_folder_that_is_named_is_that_folder() -> None:
    Path("folder").symlink_to("log")
    for pattern in ("folder", "folder/", "folder/**"):
        assert set(matching(pattern)) == {"folder/b.txt", "folder/deep/c.pt", "folder/.hidden"}
    assert set(matching("fold*")) == {"folder"}, "a file that is none is left out when it is read"


@pytest.mark.usefixtures("work")
def test_a_file_that_grows_is_taken_as_long_as_it_was() -> None:
    with Path("grows").open("wb", buffering=0) as file:
        file.write(bytes(2 * PIECE_BYTES))
        came = 0
        for item in send_files.local("grows"):
            for part in item:
                came += len(part) if isinstance(part, bytes) else 0
            file.write(bytes(PIECE_BYTES))
    assert came == 2 * PIECE_BYTES


@pytest.mark.usefixtures("work")
def test_files_arrive_as_they_were_and_every_item_rides_in_a_frame(tmp_path: Path) -> None:
    Path("tool.sh").write_text("#!/bin/sh")
    Path("tool.sh").chmod(0o744)
    Path("large").write_bytes(os.urandom(5 * PIECE_BYTES + 1))
    Path("empty").touch()
    many = Path("many")
    many.mkdir()
    for number in range(300):
        (many / f"{'n' * 200}{number}").write_text(str(number))
    items = [*send_files.local("**")]
    assert all(values.dump(item).total <= values.INLINE_BYTES for item in items)
    assert len(items) < 30, "small files share items"
    assert take_files.local(str(tmp_path / "there"), iter(items)) == 307
    for path in (path for path in Path().rglob("*") if path.is_file()):
        there = tmp_path / "there" / path
        assert there.read_bytes() == path.read_bytes()
        assert os.access(there, os.X_OK) == (path.name == "tool.sh")


@given(st.lists(st.binary(max_size=PIECE_BYTES) | st.tuples(st.just("file"), st.text(max_size=90)), max_size=30))
def test_items_have_all_parts_in_order_and_none_is_too_large(parts: list[bytes | tuple[str, str]]) -> None:
    items = [*grouped(parts)]
    assert [part for item in items for part in item] == parts
    assert all(item for item in items)
    assert all(values.dump(item).total <= values.INLINE_BYTES for item in items)
    assert ITEM_BYTES < values.INLINE_BYTES


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    writer = FileWriter(tmp_path)
    for part in (("file", "a", 5, False), b"af"):
        writer.write(part)
    assert (tmp_path / "a").read_text() == "before"
    writer.write(b"ter")
    writer.write(("end",))
    assert (tmp_path / "a").read_text() == "after"
    for part in (("file", "b", 5, False), b"af"):
        writer.write(part)
    writer.close()
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]
    assert writer.written == [tmp_path / "a"]


def test_a_link_is_replaced_and_what_it_leads_to_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "a").symlink_to(tmp_path / "precious")
    writer = FileWriter(tmp_path / "to")
    for part in (("file", "a", 5, False), b"other", ("end",)):
        writer.write(part)
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "to" / "a").read_text() == "other"
