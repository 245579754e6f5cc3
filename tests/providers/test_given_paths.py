"""Paths that users give: what is no file is told, whatever the operating system says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import SSH, Image, Slurm
from outrider.errors import SpecError
from outrider.providers.shared.paths import cache_root, expanded, no_file, no_folder, state_root


def test_the_home_of_nobody_stays_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/a")
    assert expanded("~/b") == Path("/home/a/b")
    assert expanded("~nobody-of-this-name/b") == Path("~nobody-of-this-name/b")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    (file := tmp_path / "a").touch()
    assert no_file(file) == no_folder(tmp_path) == ""
    assert no_file(tmp_path / "b") == f"there is no file {tmp_path / 'b'}"
    assert no_file(file / "b") == f"there is no file {file / 'b'}"
    assert no_file(tmp_path) == f"{tmp_path} is a folder"
    assert no_folder(file) == f"{file} is a file"
    assert no_file("/dev/null") == "/dev/null is neither a file nor a folder"
    assert "cannot be looked at (File name too long)" in no_file("x" * 300)
    assert no_file("a\0b") == r"'a\x00b' can be the path of no file"


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "x" * 300, "a\0b", "/"])
def test_an_option_that_takes_a_file_says_that_it_is_none(path: str) -> None:
    with pytest.raises(SpecError, match=r"Image\(requirements=\.\.\.\): "):
        Image(requirements=path)
    for make in (
        lambda: SSH(["a"], known_hosts=path),
        lambda: Slurm(known_hosts=path),
        lambda: SSH(["a"], config=path),
    ):
        with pytest.raises(ValueError, match=r"(SSH|Slurm)\((known_hosts|config)=\.\.\.\): "):
            make()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "OUTRIDER_CACHE", "OUTRIDER_STATE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987654321)  # as in a container, for an id that nobody has
    for root in (cache_root, state_root):
        with pytest.raises(FileNotFoundError, match="set HOME, or OUTRIDER_STATE"):
            root()
