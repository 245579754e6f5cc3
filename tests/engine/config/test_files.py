"""Which file says what pools are, and what is wrong in it. `Pool.from_config`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider import Nodes, Pool
from outrider.engine.config.files import find, read
from outrider.errors import SpecError

OWN = "[pools.train]\nnodes = 3\nmax_restarts = 2\n[pools.default]\nnodes = 2\n"
SHARED = '[project]\nname = "x"\n[tool.outrider.pools.train]\nnodes = 4\n'


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_the_nearest_file_holds_and_of_one_folder_our_own(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    shared = written(tmp_path, "pyproject.toml", SHARED)
    written(inner, "pyproject.toml", '[project]\nname = "y"\n')  # says nothing of us
    found = find(inner)
    assert found is not None
    assert (found.path, found.pools["train"]) == (shared, {"nodes": 4})
    own = written(tmp_path, "outrider.toml", OWN)
    found = find(inner)
    assert found is not None
    assert (found.path, found.pool("default")) == (own, {"nodes": 2})
    nearer = written(tmp_path / "a", "outrider.toml", OWN)
    assert (found := find(inner)) is not None
    assert found.path == nearer


def test_a_pool_is_opened_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "outrider.toml", OWN)
    monkeypatch.chdir(tmp_path)
    assert Pool.from_config("train")._settings.nodes == Nodes(3)
    assert Pool.from_config()._settings.nodes == Nodes(2)
    assert Pool.from_config("train", nodes=5, name="mine")._settings.nodes == Nodes(5)
    monkeypatch.chdir("/")
    assert Pool.from_config("train", file=file)._settings.nodes == Nodes(3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[pools.trian]\nnodes = 3", "has no pool 'train': did you mean 'trian'?"),
        ("[pools.other]\nnodes = 3", "has no pool 'train': it has other."),
        ("", "has no pool 'train': it names none."),
        ("[pool.train]\nnodes = 3", "has no table [pool]: write [pools.train]."),
        ("pools = 3", "pools is a table, not 3"),
        ("[pools]\ntrain = 3", "train is a table, not 3"),
        ("[pools.train", "is not valid TOML"),
        ("[pools.train]\nnodes = " + "9" * 5000, "cannot be read: Exceeds the limit"),
        ("a = " + "[" * 5000, "cannot be read: maximum recursion depth"),
        ("[pools.train]\nnodse = 3", "[pools.train]: a pool has no option 'nodse': did you mean 'nodes'?"),
        ("[pools.train]\nnodes = [3, 1]", "[pools.train]: nodes=(3, 1): the most, 1, is less than the least, 3."),
    ],
)
def test_what_is_wrong_is_told_with_the_file(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, "outrider.toml", text)
    with pytest.raises(SpecError) as caught:
        Pool.from_config("train", file=file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read(tmp_path / "outrider.toml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"There is no outrider.toml"):
        Pool.from_config("train")


@pytest.mark.parametrize("file", ["a\0b", "x" * 300, 5, b"outrider.toml", "/"])
def test_what_can_be_no_file_is_told(file: Any) -> None:
    with pytest.raises(SpecError, match=r"cannot be read|is a path"):
        Pool.from_config("train", file=file)


def test_a_pools_name_is_a_text(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="takes the name of a pool in the file, not 5"):
        Pool.from_config(5, file=written(tmp_path, "outrider.toml", OWN))  # type: ignore[arg-type]


def test_a_folder_above_into_which_one_may_not_look_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def refused(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path)) and str(path).endswith(".toml"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refused)
    assert find(tmp_path) is None


def test_a_file_that_others_may_have_written_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """In a folder that all share, it would send the program and its secrets to whoever put it there."""
    file = written(tmp_path, "outrider.toml", OWN)
    file.chmod(0o666)
    with pytest.raises(SpecError, match="others may write in it"):
        find(tmp_path / "a")
    file.chmod(0o644)
    found = find(tmp_path / "a")
    assert found is not None
    assert found.path == file


@pytest.mark.parametrize(
    ("name", "members", "taken"),
    [("me", [], True), ("me", ["me"], True), ("me", ["other"], False), ("users", [], False)],
)
def test_a_file_that_a_group_may_write_in_is_taken_if_the_group_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], taken: bool
) -> None:
    """With a umask of 002, it is so of every file. A primary group that all users have is nobody's own."""
    file = written(tmp_path, "outrider.toml", OWN)
    file.chmod(0o664)
    gid = file.stat().st_gid
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name="me", pw_gid=gid))
    monkeypatch.setattr("grp.getgrgid", lambda gid: SimpleNamespace(gr_name=name, gr_mem=members))
    if taken:
        assert find(tmp_path / "a") is not None
        return
    with pytest.raises(SpecError, match=rf"the group {name} may write in it \(mode 664\): run chmod g-w {file}"):
        find(tmp_path / "a")
    file.chmod(0o644)
    assert find(tmp_path / "a") is not None
