"""What every storage of checkpoints does, on a disk and on S3."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import CheckpointError, SpecError
from outrider.engine.checkpoint.store import Store, checked_root, open_store, polls


@pytest.fixture
def store(any_root: str) -> Store:
    return open_store(any_root, "run")


def test_written_content_is_read_back(store: Store) -> None:
    store.put("a/b", [b"one", bytearray(b"two"), memoryview(b"three")])
    assert store.get("a/b") == b"onetwothree"
    assert bytes(store.read("a/b", 3, 3)) == b"two"
    assert bytes(store.read("a/b", 3, 0)) == b""


def test_several_uploads_make_one_object(store: Store) -> None:
    pieces = [bytes([index]) * 9_000_000 for index in range(3)]
    store.put("large", pieces)
    assert store.get("large") == b"".join(pieces)


def test_a_read_range_can_be_written_to(store: Store) -> None:
    """Arrays are made over it."""
    store.put("a", [b"12345"])
    memoryview(store.read("a", 1, 2))[0] = 0


def test_put_replaces(store: Store) -> None:
    store.put("a", [b"old"])
    store.put("a", [b"new"])
    assert store.get("a") == b"new"


def test_reading_a_missing_file_raises_file_not_found(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.get("nothing")
    with pytest.raises(FileNotFoundError):
        store.read("nothing", 0, 1)
    assert store.names() == []
    assert store.names("nothing") == []
    store.delete("nothing")
    store.remove("nothing")


def test_create_succeeds_for_one_of_many_writers(store: Store) -> None:
    won: list[int] = []

    def create(index: int) -> None:
        if store.create("only", b"%d" % index):
            won.append(index)

    threads = [threading.Thread(target=create, args=[index]) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("only") == b"%d" % won[0]


def test_creating_the_same_twice_is_not_a_loss(store: Store) -> None:
    """A request whose answer was lost is sent again."""
    assert store.create("a", b"mine")
    assert store.create("a", b"mine")
    assert not store.create("a", b"other")


def test_failed_write_leaves_no_file(store: Store) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(10_000_000)
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        store.put("folder/half", pieces())
    assert store.names() == []


def test_names_are_of_a_folder(store: Store) -> None:
    for key in ("a/x", "a/b/y", "ab/z", "top", "a/.metadata"):
        store.put(key, [b""])
    assert sorted(store.names()) == ["a/.metadata", "a/b/y", "a/x", "ab/z", "top"]
    assert sorted(store.names("a")) == ["a/.metadata", "a/b/y", "a/x"]


def test_remove_deletes_only_that_folder(store: Store) -> None:
    for key in ("a/x", "a/b/y", "ab/z"):
        store.put(key, [b""])
    store.remove("a")
    store.delete("gone")
    assert store.names() == ["ab/z"]


def test_runs_do_not_see_each_other(any_root: str) -> None:
    open_store(any_root, "one").put("a", [b""])
    assert open_store(any_root, "two").names() == []
    assert open_store(any_root, "on").names() == []


def test_a_file_that_a_killed_process_left_is_not_seen(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), "run")
    store.put("step/a", [b""])
    (tmp_path / "run/step/.unfinished-0011").write_bytes(b"half")
    assert store.names() == ["step/a"]
    store.remove("step")
    assert not (tmp_path / "run/step").exists()


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """By a folder's name: the errors that listing it meets, one after another."""
    errors: dict[str, list[int]] = {}
    scandir = os.scandir

    def failing(path: Any) -> Any:
        if left := errors.get(Path(path).name):
            raise OSError(left.pop(0), "cannot be listed", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    return errors


@pytest.mark.parametrize("errors", [[errno.EACCES], [errno.EIO], [errno.ESTALE] * 2])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(
    tmp_path: Path, unlisted: dict[str, list[int]], errors: list[int]
) -> None:
    store = open_store(str(tmp_path), "run")
    store.put("step/a", [b""])
    unlisted["step"] = errors
    with pytest.raises(CheckpointError, match="could not be listed"):
        store.names()
    assert store.names() == ["step/a"]


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ESTALE])
def test_a_folder_that_is_removed_while_it_is_listed_is_left_out(
    tmp_path: Path, unlisted: dict[str, list[int]], error: int
) -> None:
    """ESTALE is what NFS says of one that another host removes; then it is not there any more."""
    store = open_store(str(tmp_path), "run")
    store.put("step/a", [b""])
    store.put("other/b", [b""])
    unlisted["step"] = [error, errno.ENOENT]
    assert store.names() == ["other/b"]


def test_file_system_without_hard_links_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    with pytest.raises(CheckpointError, match="hard links"):
        open_store(str(tmp_path), "run").create("a", b"")
    assert open_store(str(tmp_path), "run").names() == []


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", ".a", "a//b", "ä", "a b", None, 5])
def test_a_name_must_be_a_path_below_the_root(name: Any, root: str) -> None:
    with pytest.raises(SpecError, match="name"):
        open_store(root, name)


def test_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert checked_root("root", "here") == f"file://{tmp_path}/here"
    assert checked_root("root", Path("/data/")) == "file:///data"
    assert checked_root("root", "~/c") == "file:///home/somebody/c"
    assert checked_root("root", "~nobody-of-this-name/c") == f"file://{tmp_path}/~nobody-of-this-name/c"
    assert checked_root("root", "s3://bucket/folder/") == "s3://bucket/folder"


@pytest.mark.parametrize("root", ["", " ", "a\0b", b"a", None, 3, "file://relative", "s3://"])
def test_invalid_root_is_refused(root: object) -> None:
    with pytest.raises(SpecError, match="root"):
        checked_root("root", root)


def test_unknown_url_scheme_is_refused() -> None:
    with pytest.raises(SpecError, match="ftps"):
        open_store("ftps://host/folder", "run")


def test_polls_ends_when_woken(root: str) -> None:
    wake = threading.Event()
    count = 0
    for _ in polls(open_store(root, "run"), 600, wake):
        count += 1
        if count == 3:
            wake.set()
    assert count == 3


def test_polls_yields_once_even_without_time(root: str) -> None:
    assert len(list(polls(open_store(root, "run"), 0.0))) == 1
