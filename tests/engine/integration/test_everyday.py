"""Everyday Python: each row of `everyday` gives on nodes what it gives in the program; the guide lists the limits.

A row is a function of a script, a notebook or a module, with all that it uses at the top of its file.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROWS = Path(__file__).parent / "everyday"
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "what-travels.md"
LIBRARIES = ROWS / "rows_libraries.py"
FILES = [file for file in sorted(ROWS.glob("rows_*.py")) if file != LIBRARIES]
PATIENCE_S = 300
PLACES = [("script", "local"), ("notebook", "local"), ("module", "remote")]
OTHER_PLACES = [("module", "local"), ("script", "remote")]
RUN = "import sys, driver; driver.main(*sys.argv[1:])"


def report(folder: Path, mode: str, provider: str, files: list[Path]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, mode, provider, *map(str, files)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROWS), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("mode", "provider"), [*PLACES, *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHER_PLACES)]
)
def test_rows_give_on_nodes_what_they_give_in_the_program(mode: str, provider: str, tmp_path: Path) -> None:
    found = report(tmp_path, mode, provider, FILES)
    assert found.pop("rows") == sum(len(decorated(file)) for file in FILES)
    assert found == {"differ": {}, "hold": []}


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "provider"), [*PLACES, *OTHER_PLACES])
def test_rows_with_libraries_give_the_same(mode: str, provider: str, tmp_path: Path) -> None:
    missing = [name for name in ("joblib", "numpy", "pandas", "sklearn", "torch") if find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    found = report(tmp_path, mode, provider, [LIBRARIES])
    assert (found["differ"], found["hold"]) == ({}, [])


def test_the_guide_lists_the_limits() -> None:
    limits = [each for file in FILES for each in decorated(file) if isinstance(each, tuple)]
    lines = [f"| {code} | {instead} |" for code, instead in dict.fromkeys(limits)]
    table = [line for line in GUIDE.read_text().splitlines() if line.startswith("| ")]
    assert len(lines) > 10
    assert table[1:] == lines


def decorated(file: Path) -> list[object]:
    """Return for each row its name, and for each limit its line in the guide."""
    found: list[object] = []
    for node in ast.parse(file.read_text()).body:
        for decorator in getattr(node, "decorator_list", ()):
            name = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(name, ast.Name) and name.id == "row":
                found.append(getattr(node, "name", ""))
            elif isinstance(name, ast.Name) and name.id == "limit" and isinstance(decorator, ast.Call):
                found.append(tuple(ast.literal_eval(each) for each in decorator.args))
    return found
