"""The doors of the rooms: `__all__` in a room's `__init__.py` names the modules that other rooms may import."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
# all rooms but `testing`, whose `__init__.py` has the names that users import
ROOMS = sorted({path.parent for path in SOURCES.rglob("*.py")} - {SOURCES, SOURCES / "testing"})
Uses = dict[Path, dict[str, set[str]]]  # room -> module of the room -> modules outside of the room that import it


def named_door(room: Path) -> list[str] | None:
    """Return the public modules of a room; None: its `__init__.py` does not name them."""
    for node in ast.parse((room / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def imported(sources: Path, path: Path) -> Iterator[Path]:
    """Yield the files of the modules that a module imports, also in functions and for types."""
    package = path.relative_to(sources).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".") if node.module else []
            if node.level:
                base = [*package[: len(package) - node.level + 1], *module]
            elif module[:1] == ["outrider"]:
                base = module[1:]
            else:
                continue
            folder = sources.joinpath(*base)
            for name in node.names:
                yield from (each for each in (folder / f"{name.name}.py", folder.with_suffix(".py")) if each.is_file())
        elif isinstance(node, ast.Import):
            for name in node.names:
                parts = name.name.split(".")
                if parts[0] == "outrider" and (file := sources.joinpath(*parts[1:]).with_suffix(".py")).is_file():
                    yield file


def uses_of(sources: Path) -> Uses:
    """Return who imports which module of another room."""
    uses: Uses = defaultdict(lambda: defaultdict(set))
    for path in sources.rglob("*.py"):
        for target in imported(sources, path):
            if target.parent not in (path.parent, sources):
                uses[target.parent][target.stem].add(str(path.relative_to(sources)))
    return uses


def hidden_imports(sources: Path) -> list[str]:
    """Return the imports of modules that the rooms' doors do not name."""
    found = []
    for room, modules in uses_of(sources).items():
        door = named_door(room) or []
        found += [
            f"{user} imports {room.name}/{module}.py, which {room.relative_to(sources)}/__init__.py does not name"
            for module, users in modules.items()
            for user in sorted(users)
            if module not in door
        ]
    return found


def test_rooms_import_only_what_the_doors_of_others_name() -> None:
    assert hidden_imports(SOURCES) == []


def test_a_door_names_no_module_that_only_its_room_uses() -> None:
    uses = uses_of(SOURCES)
    texts = "\n".join(path.read_text() for path in [*SOURCES.rglob("*.py"), SOURCES.parent / "pyproject.toml"])
    unused = [
        f"{room.relative_to(SOURCES)}: {module}"
        for room in ROOMS
        for module in named_door(room) or []
        if module not in uses[room]
        and f"{'.'.join(room.relative_to(SOURCES).parts)}.{module}" not in texts  # loaded by its name, as text
    ]
    assert unused == []


def test_an_import_past_a_door_is_found(tmp_path: Path) -> None:
    for file, text in {
        "shop/__init__.py": '__all__ = ["counter"]\n',
        "shop/counter.py": "from . import cellar\n",
        "shop/cellar.py": "",
        "street/__init__.py": "",
        "street/guest.py": "from outrider.shop import cellar\n\n\ndef enter():\n    from ..shop.counter import bell\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert hidden_imports(tmp_path) == ["street/guest.py imports shop/cellar.py, which shop/__init__.py does not name"]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(SOURCES)))
def test_modules_of_a_door_exist(room: Path) -> None:
    for module in named_door(room) or []:
        assert (room / f"{module}.py").is_file() or (room / module / "__init__.py").is_file()
