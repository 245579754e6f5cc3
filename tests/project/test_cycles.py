"""No modules import each other in a circle, even for types or inside functions. Import-linter sees only packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


def imported(source: str, module: str, *, is_package: bool, modules: frozenset[str]) -> set[str]:
    """The modules of Outrider that a module imports: at its top, inside functions, and for types."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    names = set[str]()
    for node in _imports(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            names |= {".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names}
    found = {_module_of(name, modules) for name in names if name.partition(".")[0] == "outrider"}
    return found - {module, ""}


def _imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a module. Expressions have none, so this skips them: it is three times as fast."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, field, None)
            if isinstance(children, list):  # `body` of a lambda is an expression
                left += children


def _module_of(name: str, modules: frozenset[str]) -> str:
    """The module that has the imported name, which is a module itself or a name in one. Empty: there is none."""
    while name not in modules and name:
        name = name.rpartition(".")[0]
    return name


@cache
def all_imports() -> Mapping[str, set[str]]:
    paths = {}
    for path in SRC.rglob("*.py"):
        parts = ["outrider", *path.relative_to(SRC).with_suffix("").parts]
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    modules = frozenset(paths)
    return {
        module: imported(path.read_text(), module, is_package=path.name == "__init__.py", modules=modules)
        for module, path in paths.items()
    }


def cycle(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle, each imported by the next one. Empty: there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert len(all_imports()) > 300
    assert cycle(all_imports()) == []


def test_a_circle_is_found() -> None:
    """Here of three modules: one import is for types, and one stands in a function."""
    modules = frozenset({"outrider", "outrider.a", "outrider.b", "outrider.b.c", "outrider.d"})
    sources = {
        "outrider": "",
        "outrider.a": "if TYPE_CHECKING:\n    from .b.c import Name\n",
        "outrider.b": "",
        "outrider.b.c": "def f():\n    try:\n        from .. import d\n    except ImportError:\n        import os\n",
        "outrider.d": "import outrider.a as a",
    }
    packages = {"outrider", "outrider.b"}
    imports = {
        module: imported(source, module, is_package=module in packages, modules=modules)
        for module, source in sources.items()
    }
    assert sorted(set(cycle(imports))) == ["outrider.a", "outrider.b.c", "outrider.d"]
    assert cycle(imports | {"outrider.d": set()}) == []


def test_a_planted_import_closes_a_circle() -> None:
    """`sync` imports `pool_verbs`, so that an import of `sync` for types in a module below closes a circle."""
    imports = all_imports()
    below = "outrider.engine.client.jobs"
    planted = imported(
        "if TYPE_CHECKING:\n    from ..sync import SyncPool", below, is_package=False, modules=frozenset(imports)
    )
    assert below in cycle({**imports, below: imports[below] | planted})
