"""Every numbered invariant that the code states is held by a test, and was proved by breaking the code once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERED = re.compile(r"\b([A-Z]{3,}-\d+)\b")
OTHERS = ("CANADA-", "CRC-", "ECMA-", "NORWAY-", "PMI-", "RFC-", "SHA-", "UTF-")  # places, standards, MPI's protocol
BREAKS = re.compile(r"falls_(without|where)|notices_when|sees_when")  # the names of the tests that break the code


def numbered(text: str) -> set[str]:
    return {each for each in NUMBERED.findall(text) if not each.startswith(OTHERS)}


def stated() -> dict[str, Path]:
    return {each: path for path in (ROOT / "src").rglob("*.py") for each in numbered(path.read_text())}


def proved(path: Path) -> set[str]:
    """The invariants that a test which breaks the code names: in its text, its parameters, or a table that it uses."""
    text = path.read_text()
    if not BREAKS.search(text):
        return set()
    tree, found = ast.parse(text), set[str]()
    tables: dict[str, ast.stmt] = {}
    for each in tree.body:
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        tables |= {target.id: each for target in targets if isinstance(target, ast.Name)}
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and BREAKS.search(each.name):
            used = [tables[name.id] for name in ast.walk(each) if isinstance(name, ast.Name) and name.id in tables]
            for part in (each, *each.decorator_list, *used):
                found |= numbered(ast.get_source_segment(text, part) or "")
    return found


def test_every_invariant_is_named_by_a_test() -> None:
    named = set().union(*(numbered(path.read_text()) for path in (ROOT / "tests").rglob("*.py")))
    left = {name: str(path.relative_to(ROOT)) for name, path in stated().items() if name not in named}
    assert not left, f"name each in the test that holds it: {left}"


def test_every_invariant_was_proved_by_breaking_the_code() -> None:
    """By a test whose name says so: it takes the guard out, and expects that what holds the invariant fails."""
    known = set().union(*map(proved, (ROOT / "tests").rglob("*.py")))
    left = {name: str(path.relative_to(ROOT)) for name, path in stated().items() if name not in known}
    assert not left, f"add a test ..._falls_without_its_guard that names each: {left}"
