"""The commit-msg hook takes `area: imperative subject` with a body, and says what is wrong with other messages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "commit_message.py"
HOOK: dict[str, Any] = runpy.run_path(str(SCRIPT))
BODY = "\n\nWhy, and how it was checked.\n"


@pytest.mark.parametrize(
    "message",
    [
        "transport: reconnect after a refused ssh session" + BODY,
        "wire: pass tensors by reference" + BODY,
        "docs, tests: embed the picture" + BODY,
        "engine/wire: need no second copy" + BODY,
        "x: " + "a" * 69 + BODY,
        "node: focus on one thing" + BODY + "# a comment of git's\n",
        "node: keep stacks" + BODY + HOOK["SCISSORS"] + "\ndiff --git a b\n",
        "Merge branch 'ports': count free ports",
        "fixup! node: keep stacks",
    ],
)
def test_message_is_accepted(message: str) -> None:
    assert HOOK["problems"](message) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("Reconnect after a refusal" + BODY, "is not `area: imperative subject`"),
        ("transport:reconnect" + BODY, "is not `area: imperative subject`"),
        ("x: " + "a" * 70 + BODY, "73 characters"),
        ("transport: Reconnect" + BODY, "capital letter"),
        ("transport: reconnected after a refusal" + BODY, "no imperative"),
        ("transport: reconnects after a refusal" + BODY, "no imperative"),
        ("transport: reconnecting after a refusal" + BODY, "no imperative"),
        ("node: a stack that was written is read" + BODY, "begin with a verb"),
        ("node: keep stacks." + BODY, "full stop"),
        ("node: keep stacks\nWhy." + BODY, "second line"),
        ("node: keep stacks", "no body"),
        ("node: keep stacks\n\n# a comment\n", "no body"),
    ],
)
def test_message_is_refused_with_the_reason(message: str, problem: str) -> None:
    assert problem in "\n".join(HOOK["problems"](message))


@pytest.mark.parametrize(("message", "status"), [("node: keep stacks" + BODY, 0), ("node: kept stacks", 1)])
def test_command_exits_with_what_git_needs(message: str, status: int, tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    done = subprocess.run([sys.executable, SCRIPT, file], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert bool(done.stderr) is bool(status)


def test_hook_is_installed_by_pre_commit() -> None:
    settings = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.search(r"^default_install_hook_types: \[.*commit-msg.*\]$", settings, re.MULTILINE)
    assert re.search(r"entry: .venv/bin/python .ci/commit_message.py\n.*\n +stages: \[commit-msg\]", settings)


def test_example_of_the_contributors_page_is_accepted() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(r"^   ```\n(.*?)^   ```$", page, re.MULTILINE | re.DOTALL)
    assert HOOK["problems"](re.sub(r"^   ", "", example, flags=re.MULTILINE)) == []
