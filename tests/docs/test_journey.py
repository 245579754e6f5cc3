"""The functions that the pages name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:\w+/)+\w+\.py)`\s+`([\w.]+)`")


def definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{prefix}{node.name}.")


@pytest.mark.parametrize("page", ["journey", "architecture"])
def test_named_functions_exist(page: str) -> None:
    missing = []
    for path, name in NAMED.findall((ROOT / "docs" / f"{page}.md").read_text()):
        module = ROOT / "src" / path
        if not module.exists() or name not in set(definitions(ast.parse(module.read_text()).body)):
            missing.append(f"{path} {name}")
    assert missing == []


def test_the_journey_names_functions() -> None:
    assert len(NAMED.findall((ROOT / "docs" / "journey.md").read_text())) > 20
