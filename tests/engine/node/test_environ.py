"""The variable of each task: what a process and its children read, and what is left of those before."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from outrider.engine.node.info import Variable

NAME = "OUTRIDER_TEST"


@pytest.fixture
def variable(monkeypatch):
    monkeypatch.setenv(NAME, "before")
    return Variable(NAME)


def seen():
    """By Python here, by C here, by a child."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    child = subprocess.run(
        [sys.executable, "-c", f"import os; print(os.environ[{NAME!r}])"], capture_output=True, check=True, text=True
    )
    return {os.environ[NAME], getenv(NAME.encode()).decode(), child.stdout.removesuffix("\n")}


@pytest.mark.parametrize("texts", [["a"], ["a", "b" * 9], ["long" * 300, "short"], ["é", "x" * 50_000, ""]])
def test_everybody_sees_the_last_value(variable, texts):
    for text in texts:
        variable.set(text)
        assert seen() == {text}


def test_what_a_task_did_to_it_is_undone_by_the_next(variable):
    variable.set("first")
    os.environ[NAME] = "its own"
    variable.set("second")
    assert seen() == {"second"}
    del os.environ[NAME]
    variable.set("third")
    assert seen() == {"third"}


def test_values_are_not_kept():
    script = f"""
import resource
from outrider.engine.node.info import Variable
variable = Variable({NAME!r})
def peak(values):
    for number in range(values):
        variable.set(f"{{number:01000}}")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(-peak(100) + peak(20_000))
"""
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert int(grown.stdout) < 2_000  # KiB: of 20,000
