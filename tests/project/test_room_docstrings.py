"""The docstring of each room's ``__init__.py``: what the room does, its public names, and which file to open first."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
ROOMS = sorted(path.parent for path in SRC.rglob("__init__.py") if path.parent != SRC)
MOST_LINES = 16
PARTS = re.compile(r"\A(?P<purpose>.+?)\n\nPublic names: (?P<names>.+?)\nOpen first: (?P<first>.+?)\Z", re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")


def room_name(room: Path) -> str:
    return str(room.relative_to(SRC))


def init_of(room: Path) -> ast.Module:
    return ast.parse((room / "__init__.py").read_text())


def parts(room: Path) -> re.Match[str]:
    match = PARTS.match(ast.get_docstring(init_of(room)) or "")
    assert match, "the form is: purpose, an empty line, 'Public names: ...', 'Open first: ...'"
    return match


def defined_names(module: Path) -> set[str]:
    names = set[str]()
    for node in ast.parse(module.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def exists(room: Path, name: str) -> bool:
    """Return whether ``module``, ``subroom`` or ``module.name`` is in the room."""
    module, _, attribute = name.partition(".")
    path = room / f"{module}.py"
    if not attribute:
        return path.is_file() or (room / module).is_dir()
    return path.is_file() and attribute in defined_names(path)


@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_init_is_a_short_docstring_and_the_list_of_public_modules(room: Path) -> None:
    """Nodes and commands import these files: anything else in them would cost each start.

    `testing` is the exception: users import its names from there, and each is imported when it is used.
    """
    tree = init_of(room)
    assert [ast.unparse(node).split(" = ")[0] for node in tree.body[1:]] in ([], ["__all__"]) or room == SRC / "testing"
    assert len((ast.get_docstring(tree) or "").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_public_names_exist(room: Path) -> None:
    names = [name for name in SPAN.findall(parts(room)["names"]) if name != "outrider.testing"]
    assert names
    assert [name for name in names if not exists(room, name)] == []


@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_files_to_open_first_exist(room: Path) -> None:
    files = SPAN.findall(parts(room)["first"])
    assert files
    assert [name for name in files if not (room / name).is_file()] == []


@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_modules_in_the_description_exist(room: Path) -> None:
    names = [name for name in SPAN.findall(parts(room)["purpose"]) if re.fullmatch(r"[a-z_]+", name)]
    outside = {"outrider", "gc", "instance_info", "shard", "should_stop"}  # commands, and functions of tasks
    absent = {name for name in names if not (exists(room, name) or exists(SRC / "engine", name))}
    assert absent - outside == set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ledger", True),
        ("pool.PoolActor", True),
        ("pool.NoSuchClass", False),
        ("no_such_module", False),
        ("no_such_module.Name", False),
    ],
)
def test_exists_looks_into_modules(name: str, expected: bool) -> None:
    assert exists(SRC / "actors", name) is expected


def test_architecture_page_is_a_tour() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().split()) <= 1300
