"""The rooms of the engine: which imports go up, types included. Import-linter sees those at run time alone."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "src" / "engine"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PREFIX = ["outrider", "engine"]


def layers() -> dict[str, int]:
    """Each room's layer, from the outermost on, as import-linter is told them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rooms,) = (contract["layers"] for contract in contracts if contract["name"] == "Rooms of the engine")
    return {room.strip(): number for number, layer in enumerate(rooms) for room in layer.split("|")}


def imported_rooms(path: Path) -> Iterator[str]:
    """The rooms that a module imports from, at run time or for types alone."""
    package = [*PREFIX, *path.relative_to(ENGINE).with_suffix("").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            names = [[*base, alias.name] for alias in node.names]
        yield from (name[2] for name in names if name[:2] == PREFIX and len(name) > 2)


def arrows_up() -> dict[tuple[str, str], str]:
    """The pairs of rooms of which the first imports from the second, which is above or beside it; each with a place."""
    order, found = layers(), dict[tuple[str, str], str]()
    for path in sorted(ENGINE.rglob("*.py")):
        room = path.relative_to(ENGINE).with_suffix("").parts[0]
        if room == "__init__":
            continue
        for other in imported_rooms(path):
            if other != room and order[other] <= order[room]:
                found[room, other] = str(path.relative_to(ROOT))
    return found


def named_arrows() -> list[set[tuple[str, str]]]:
    """The rows of the page's table, each as the pairs of rooms that it names."""
    table = PAGE.partition("| arrow up | reason |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = []
    for row in table.splitlines():
        below, above = (re.findall(r"`(\w+)[\w.]*`", side) for side in row.split("|")[1].split(" to "))
        rows.append(set(product(below, above)))
    return rows


def test_the_arrows_up_are_those_that_the_architecture_page_names() -> None:
    found, named = arrows_up(), set[tuple[str, str]]().union(*named_arrows())
    assert {pair: place for pair, place in found.items() if pair not in named} == {}, "an arrow up without a reason"
    assert named - found.keys() == set(), "named, and gone: take it out of the page"


def test_there_are_at_most_two_arrows_up() -> None:
    assert 0 < len(named_arrows()) <= 2
