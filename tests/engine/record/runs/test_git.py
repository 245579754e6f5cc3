"""The commit, and what has been changed since: nothing else, and nothing is changed by looking."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engine.record.runs import writer
from outrider.engine.record.runs.writer import git_state


@pytest.fixture
def run_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setattr(writer, "PATIENCE_S", 60.0)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> str:
        who = ["-c", "user.name=me", "-c", "user.email=me@example.com"]
        return subprocess.check_output(["git", *who, *arguments], cwd=tmp_path, text=True).strip()

    return run


def test_a_folder_outside_of_repositories_has_no_state(run_git: Callable[..., str], tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    run_git("init", "-q", "-b", "main")
    assert git_state(tmp_path) is None  # there is no commit
    assert git_state(tmp_path / "nowhere") is None


def test_the_changes_can_be_applied(run_git: Callable[..., str], tmp_path: Path) -> None:
    run_git("init", "-q", "-b", "main")
    (tmp_path / "package").mkdir()
    script = tmp_path / "package" / "train.py"
    script.write_text("lr = 1\n")
    run_git("add", ".")
    run_git("commit", "-q", "-m", "first")
    state = git_state(script.parent)
    assert state is not None
    assert (state.commit, state.branch, state.diff) == (run_git("rev-parse", "HEAD"), "main", b"")
    script.write_text("lr = 2\n")
    run_git("checkout", "-q", "--detach")
    state = git_state(script.parent)
    assert state is not None
    assert (Path(state.folder), state.branch, state.cut) == (tmp_path.resolve(), "", False)
    script.write_text("lr = 1\n")
    subprocess.run(["git", "apply"], cwd=tmp_path, input=state.diff, check=True)
    assert script.read_text() == "lr = 2\n"


def test_a_large_change_is_cut(run_git: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git("init", "-q")
    (tmp_path / "data").write_text("")
    run_git("add", ".")
    run_git("commit", "-q", "-m", "first")
    monkeypatch.setattr(writer, "DIFF_BYTES", 500)
    (tmp_path / "data").write_text("x" * 100_000)
    state = git_state(tmp_path)
    assert state is not None
    assert (len(state.diff), state.cut) == (500, True)


def test_a_computer_without_git_has_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None
