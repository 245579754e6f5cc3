"""Private names of libraries: each that is used stands in a decision page, with its reason, and is there."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions" / "0027-local-nodes-without-ssh.md"
ROWS = re.findall(r"^\| `([\w.]+)` \| `?([\w./ ]+)`? \|", PAGE.read_text(), re.MULTILINE)
LISTED = {name for name, _ in ROWS}

OF_VALUES = {  # used of a value, whose class the source does not name
    "asyncio.BaseEventLoop._ready",
    "asyncio.BaseEventLoop._run_once",
    "asyncio.Handle._run",
    "traceback.TracebackException._str",
}
BY_NAME = {"torch._dynamo"}  # imported as a text says
DOCUMENTED = {"os._exit", "sys._current_frames", "sys._getframe"}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def private_names(source: str) -> Iterator[str]:
    """The private names of other packages that a module imports, or reaches through what it imports."""
    nodes, imported = [*ast.walk(ast.parse(source))], dict[str, str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported |= {(each.asname or each.name).partition(".")[0]: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
            imported |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    yield from filter(is_private, imported.values())
    for node in nodes:
        chain, at = list[str](), node
        while isinstance(at, ast.Attribute):
            chain.append(at.attr)
            at = at.value
        if chain and is_private(chain[0]) and isinstance(at, ast.Name) and at.id in imported:
            yield ".".join([imported[at.id], *reversed(chain)])


def test_each_private_name_of_a_library_has_a_line_with_its_reason() -> None:
    sources = (ROOT / "src").rglob("*.py")
    used = {name for path in sources for name in private_names(path.read_text())} - DOCUMENTED
    assert used | OF_VALUES | BY_NAME == {name for name in LISTED if not name.startswith("outrider.")}


def test_they_are_found() -> None:
    source = "import os\nimport a.b as c\nfrom d import _e\nc.f._g.h\nc.f._g\nos._exit(1)\nfrom . import _ours\n"
    assert set(private_names(source)) == {"d._e", "a.b.f._g", "os._exit"}


@pytest.mark.parametrize("name", sorted(LISTED))
def test_it_is_where_it_was(name: str) -> None:
    parts = name.split(".")
    pytest.importorskip(parts[0])
    found: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        if part == "_ready":
            found = found()
            found.close()
        if part == "_str":
            found = found(ValueError, ValueError("text"), None)
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:at]))
        found = getattr(found, part)
