"""No file and no function of the package is longer than one can take in: where one grows, it is divided first."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
FILE_LINES, FUNCTION_LINES = 800, 60


def test_no_file_is_too_long() -> None:
    lines = {path: path.read_text().count("\n") for path in SOURCES.rglob("*.py")}
    assert len(lines) > 100
    assert {str(path): count for path, count in lines.items() if count > FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{path}:{node.lineno} {node.name}": length
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert found == {}
