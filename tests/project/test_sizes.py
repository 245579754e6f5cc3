"""No file and no function of the package is longer than one can take in: where one grows, it is divided first.

Docstrings do not count: an option more is a line more in them, and nothing to divide.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
FILE_LINES, FUNCTION_LINES = 800, 60
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.AST) -> int:
    """The lines of all docstrings below this node, its own included."""
    return sum(
        (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, Documented) and ast.get_docstring(node) is not None
    )


def test_no_file_is_too_long() -> None:
    texts = {path: path.read_text() for path in SOURCES.rglob("*.py")}
    lines = {path: text.count("\n") - docstring_lines(ast.parse(text)) for path, text in texts.items()}
    assert len(lines) > 100
    assert {str(path): count for path, count in lines.items() if count > FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{path}:{node.lineno} {node.name}": length
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)) > FUNCTION_LINES
    }
    assert found == {}


def test_docstrings_are_counted_with_their_quotes() -> None:
    assert (
        docstring_lines(ast.parse('"""One."""\n\n\ndef f():\n    """Two.\n\n    Three.\n    """\n    return 1\n')) == 5
    )
