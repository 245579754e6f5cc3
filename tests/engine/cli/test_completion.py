"""Shells complete verbs, options and runs, with what `outrider --install-completion` installs."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.engine.cli.run_choice import run_words
from outrider.engine.record.runs.files import RecordFiles

MAIN = "from outrider.engine.cli.main import main; main()"
ASK = """
. ~/.bashrc
found=$(complete -p outrider); function=${found#*-F }; function=${function%% *}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function" outrider "${COMP_WORDS[COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
DEADLINE_S = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, with the command on its PATH and a run."""
    command = tmp_path / "bin" / "outrider"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{MAIN}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    RecordFiles.make(tmp_path / "state" / "runs", "train", 1e9).close()
    return tmp_path


def installed(shell: str) -> None:
    subprocess.run(["outrider", "--install-completion", "--shell", shell], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_verbs_options_and_runs(home: Path) -> None:
    installed("bash")

    def completed(*words: str) -> list[str]:
        said = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", *words], capture_output=True, text=True, check=True, cwd=home
        )
        return said.stdout.split()

    assert {"gc", "ps", "run", "runs", "ssh", "config"} <= {*completed("outrider", "")}
    assert completed("outrider", "ru") == ["run", "runs"]
    assert completed("outrider", "config", "ch") == ["check"]
    assert completed("outrider", "runs", "--js") == ["--json"]
    assert completed("outrider", "logs", "tr") == ["train"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
@pytest.mark.parametrize(("typed", "completed"), [("ru\t", "run"), ("runs --js\t", "--json"), ("logs tr\t", "train")])
def test_zsh_completes_verbs_options_and_runs(home: Path, typed: str, completed: str) -> None:
    installed("zsh")
    with (home / ".zshrc").open("a") as startup:
        startup.write("autoload -U compinit; compinit -u\nPS1='ready> '\n")
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("zsh", ["zsh", "-i"], {**os.environ, "TERM": "dumb"})
    try:
        said = until(terminal, "ready> ", "")
        os.write(terminal, f"outrider {typed}".encode())
        said = until(terminal, completed, said[:0])
        assert completed in said
    finally:
        os.close(terminal)  # which hangs up
        os.waitpid(child, 0)


def until(terminal: int, wanted: str, said: str) -> str:
    """Read what a shell writes until the wanted text is there."""
    by = time.monotonic() + DEADLINE_S
    while wanted not in said and (left := by - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            said += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(terminal, 65536).decode(errors="replace"))
    return said


def test_a_name_is_the_newest_run_of_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = RecordFiles.make(home / "state" / "runs", "train", 2e9)
    new.replace("status.json", {"began": 2e9, "state": "ended"})
    new.close()
    words = run_words(None)
    assert new.directory.name in words["train"]
    assert words[new.directory.name] == "ended"
    assert len(words) == 3
    monkeypatch.setenv("OUTRIDER_STATE", "/dev/null/state")
    assert run_words(None) == {}
