"""Folders in which only their user writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.providers.errors import JournalError
from outrider.providers.shared import pool_lock
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.paths import NotPrivate, check_private, make_private

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to others")


def test_what_is_made_is_private_with_all_that_was_missing_above_it(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        assert make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.rglob("*"))] == [0o700] * 3
    assert not make_private(tmp_path / "a" / "b" / "c")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o702])
def test_what_others_may_write_in_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(NotPrivate, match=f"others may write in it .mode {mode:o}"):
        make_private(tmp_path / "open")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_what_others_may_only_read_will_do(tmp_path: Path, mode: int) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown").chmod(mode)
    assert not make_private(tmp_path / "shown")


@as_root
def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir(mode=0o700)
    os.chown(tmp_path / "strange", NOBODY, NOBODY)
    with pytest.raises(NotPrivate, match=f"belongs to another user .uid {NOBODY}"):
        check_private(tmp_path / "strange")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file")


@pytest.mark.parametrize("place", ["", "pools"])
def test_a_journal_is_not_kept_where_others_write(tmp_path: Path, place: str) -> None:
    root = tmp_path / "state"
    Journal.open(root)
    (root / place).chmod(0o777)
    with pytest.raises(JournalError, match=r"others may write in it.*\$OUTRIDER_STATE"):
        Journal.open(root)


def test_a_link_that_waits_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that nobody can guess, and one that exists already is not taken."""
    (tmp_path / "mine").write_text("as it was")
    monkeypatch.setattr(pool_lock.os, "urandom", bytes)
    (tmp_path / f"pool.{bytes(8).hex()}").symlink_to(tmp_path / "mine")
    with pytest.raises(FileExistsError):
        pool_lock.write_whole(tmp_path / "pool", "something else")
    assert (tmp_path / "mine").read_text() == "as it was"
