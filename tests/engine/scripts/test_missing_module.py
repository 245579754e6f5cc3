"""What a run says when the Python of its ranks lacks a module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider import errors
from outrider.engine.scripts.failures import missing_module_advice
from outrider.engine.scripts.program import ProgramFailed


def lacks(module: str) -> errors.BroadcastFailed:
    error = ProgramFailed(f"ModuleNotFoundError: No module named {module!r}", 1)
    outcome = errors.Outcome(0, 0, error)
    return errors.BroadcastFailed("train failed", [error], [outcome], outcome)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("numpy.linalg", ["numpy is installed here, and not on the nodes", "--image pip=numpy==", "--image python=/"]),
        ("no_such_module", ["no_such_module is not on the nodes", "--image pip=no_such_module", "--image python=/"]),
        ("own_helper", ["which is your own code here", "--image includes=own_helper"]),
    ],
)
def test_nodes_elsewhere_get_a_module_by_an_option(
    module: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_helper.py").touch()
    advice = missing_module_advice(lacks(module), local=False)
    assert [word for word in words if word not in advice] == []


def test_ranks_of_this_computer_have_outriders_own_python() -> None:
    advice = missing_module_advice(lacks("no_such_module"), local=True)
    assert f"Outrider's own Python, {sys.executable}" in advice
    assert f"{sys.executable} -m pip install no_such_module" in advice


@pytest.mark.parametrize("module", ["_ctypes", "sqlite3"])
def test_parts_of_python_are_no_packages(module: str) -> None:
    assert missing_module_advice(lacks(module), local=False) == ""


def test_other_failures_have_no_such_advice() -> None:
    failed = ProgramFailed("LookupError: no such shard", 1)
    outcome = errors.Outcome(0, 0, failed)
    assert missing_module_advice(errors.BroadcastFailed("x", [failed], [outcome], outcome), local=False) == ""
