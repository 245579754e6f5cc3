"""Which files go along, where they land, and how tasks import them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import Image, SpecError
from outrider.engine.image import includes


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Writes files (path=text) and gives their folder."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def places(*include: Any, excludes: tuple[str, ...] = ()) -> set[str]:
    return set(includes.scan(Image(includes=include, excludes=excludes)).files)


def test_a_package_a_file_and_a_folder_land_under_their_names(tree: Any) -> None:
    top = tree({"pkg/__init__.py": "", "pkg/sub/mod.py": "", "one.py": "", "data/x.csv": "1"})
    assert places(top / "pkg", top / "one.py", top / "data") == {
        "pkg/__init__.py",
        "pkg/sub/mod.py",
        "one.py",
        "data/x.csv",
    }
    found = includes.scan(Image(includes=[top / "pkg", top / "one.py", top / "data"]))
    assert found.modules == {"pkg", "one"}
    assert sum(file.copy.size_bytes for file in found.files.values()) == 1


def test_modules_are_found_by_name_and_as_objects(tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tree({"inc_pkg/__init__.py": "", "inc_pkg/a.py": "", "inc_mod.py": "", "inc_ns/part/b.py": ""})
    monkeypatch.syspath_prepend(top)
    assert places("inc_pkg", "inc_mod", "inc_ns.part") == {
        "inc_pkg/__init__.py", "inc_pkg/a.py", "inc_mod.py", "inc_ns/part/b.py"
    }  # fmt: skip
    import inc_mod

    try:
        assert places(inc_mod) == {"inc_mod.py"}
    finally:
        del sys.modules["inc_mod"]


@pytest.mark.parametrize(
    ("include", "why"),
    [
        ("no/such/folder", "there is no "),
        ("no_such_module", "neither a file here"),
        ("sys", "not made of files"),
        ("json.decoder", "include all of 'json'"),
    ],
)
def test_missing_include_is_refused(include: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        places(include)


def test_two_of_one_name_are_refused(tree: Any) -> None:
    top = tree({"a/same/x.py": "", "b/same/x.py": ""})
    with pytest.raises(SpecError, match="would both be same"):
        places(top / "a" / "same", top / "b" / "same")
    assert places(top / "a" / "same", top / "a" / "same") == {"same/x.py"}


def test_gitignore_is_respected_as_git_does(tree: Any) -> None:
    top = tree(
        {
            ".git/config": "",
            ".gitignore": "*.log\nbuild/\n/only_top\nsecret.env\n",
            "pkg/.gitignore": "!keep.log\n*.tmp\n",
            "pkg/a.py": "", "pkg/x.log": "", "pkg/keep.log": "", "pkg/x.tmp": "", "pkg/build/o": "",
            "pkg/only_top": "", "pkg/deep/y.tmp": "", "pkg/deep/secret.env": "", "only_top": "",
        }
    )  # fmt: skip
    assert places(top / "pkg") == {"pkg/.gitignore", "pkg/a.py", "pkg/keep.log", "pkg/only_top"}
    whole = places(top)
    assert f"{top.name}/only_top" not in whole
    assert f"{top.name}/pkg/a.py" in whole


def test_folder_included_by_name_is_sent_though_git_ignores_it(tree: Any) -> None:
    top = tree({".git/config": "", ".gitignore": "generated/\n", "generated/a.py": "", "generated/b.pyc": ""})
    assert places(top / "generated") == {"generated/a.py"}


def test_gitignore_files_outside_a_repository_count_only_inside(tree: Any) -> None:
    top = tree({".gitignore": "*.py\n", "pkg/a.py": "", "pkg/.gitignore": "b.py", "pkg/b.py": ""})
    assert places(top / "pkg") == {"pkg/a.py", "pkg/.gitignore"}


def test_excludes_have_the_last_word(tree: Any) -> None:
    top = tree(
        {"p/.gitignore": "*.bin\n", "p/a.bin": "", "p/b.bin": "", "p/test_x.py": "", "p/sub/test_y.py": "", "p/z": ""}
    )
    assert places(top / "p", excludes=("!a.bin", "test_*.py", ".gitignore")) == {"p/a.bin", "p/z"}


def test_environments_caches_and_repositories_stay_here(tree: Any) -> None:
    top = tree(
        {"p/.venv/pyvenv.cfg": "", "p/.venv/lib/x.py": "", "p/__pycache__/a.pyc": "", "p/.git/HEAD": "", "p/a.py": ""}
    )
    assert places(top / "p") == {"p/a.py"}


def test_links_are_followed_and_never_in_circles(tree: Any) -> None:
    top = tree({"p/a.py": "A", "other/b.py": "B"})
    (top / "p" / "link.py").symlink_to(top / "other" / "b.py")
    (top / "p" / "folder").symlink_to(top / "other")
    (top / "p" / "circle").symlink_to(top / "p")
    (top / "p" / "nowhere").symlink_to(top / "missing")
    assert places(top / "p") == {"p/a.py", "p/link.py", "p/folder/b.py"}


def test_link_beside_its_folder_hides_nothing(tree: Any) -> None:
    """INCLUDES-1"""
    top = tree({"p/v1/a.bin": "1", "p/v2/a.bin": "2", "p/v2/deep/b.bin": "2"})
    (top / "p" / "current").symlink_to("v2")  # before its folder by the alphabet
    (top / "p" / "zlast").symlink_to("v1")
    (top / "p" / "v1" / "sister").symlink_to("../v2")
    (top / "p" / "v2" / "sister").symlink_to("../v1")
    (top / "p" / "v2" / "deep" / "up").symlink_to("..")
    real = {"p/v1/a.bin", "p/v2/a.bin", "p/v2/deep/b.bin"}
    linked = {"p/current/a.bin", "p/current/deep/b.bin", "p/zlast/a.bin"}
    found = places(top / "p")
    assert real | linked <= found, "INCLUDES-1"
    assert found - real - linked == {
        "p/current/sister/a.bin",
        "p/v1/sister/a.bin",
        "p/v1/sister/deep/b.bin",
        "p/v2/sister/a.bin",
        "p/zlast/sister/a.bin",
        "p/zlast/sister/deep/b.bin",
    }


def test_including_links_falls_without_its_guard(tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """INCLUDES-1"""
    seen: set[tuple[int, int]] = set()

    def is_known(folder: tuple[int, int], _: object) -> bool:
        known = folder in seen
        seen.add(folder)
        return known

    monkeypatch.setattr(includes, "_is_loop", is_known)
    with pytest.raises(AssertionError, match="INCLUDES-1"):
        test_link_beside_its_folder_hides_nothing(tree)


def test_links_that_lead_to_a_folder_too_often_are_refused(tree: Any) -> None:
    top = tree({f"p/{name}/a.txt": name for name in "abcdefg"})
    for folder in "abcdefg":
        for other in "abcdefg":
            (top / "p" / folder / f"to-{other}").symlink_to(f"../{other}")
    with pytest.raises(SpecError, match=r"symlinks below .*/p lead to the folder .*/p/. more than 100 times: exclude"):
        places(top / "p")
    assert len(places(top / "p", excludes=("to-*",))) == 7


def test_folder_that_cannot_be_read_is_refused(tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    top, scandir = tree({"p/a.py": "A", "p/secret/b.py": "B"}), os.scandir

    def denied(path: Any) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SpecError, match=r"p/secret cannot be read: Permission denied\. Exclude it"):
        places(top / "p")
    assert places(top / "p", excludes=("secret",)) == {"p/a.py"}


def test_contents_and_executable_bits_are_kept(tree: Any) -> None:
    top = tree({"p/run.sh": "x", "p/same.txt": "x"})
    (top / "p" / "run.sh").chmod(0o755)
    found = includes.scan(Image(includes=[top / "p"])).files
    assert found["p/run.sh"].executable
    assert not found["p/same.txt"].executable
    assert found["p/run.sh"].copy == found["p/same.txt"].copy


def test_folders_on_this_path_are_on_that_of_the_nodes(tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tree({"proj/src/lib/__init__.py": "", "proj/scripts/train.py": ""})
    monkeypatch.setattr(sys, "path", [str(top / "proj" / "src"), "/usr/lib"])
    found = includes.scan(Image(includes=[top / "proj"]))
    assert found.paths == (".", "proj/src")
    assert "lib" in found.modules


def test_on_this_computer_included_modules_are_found_where_they_are(tree: Any) -> None:
    top = tree({"somewhere/pkg/__init__.py": "", "somewhere/mod.py": ""})
    given = Image(includes=[top / "somewhere" / "pkg", top / "somewhere" / "mod.py"], env={"PYTHONPATH": "/first"})
    assert includes.on_this_computer(given).env == {"PYTHONPATH": f"/first:{top / 'somewhere'}"}
    assert includes.on_this_computer(Image(env={"A": "1"})) == Image(env={"A": "1"})
    with pytest.raises(SpecError, match="no-such-package-of-ours"):
        includes.on_this_computer(Image(pip=["no-such-package-of-ours"]))


def test_a_bad_pattern_is_refused_where_it_was_written(tree: Any) -> None:
    top = tree({"p/a.py": ""})
    with pytest.raises(SpecError, match="patterns as git knows them"):
        places(top / "p", excludes=("!",))
