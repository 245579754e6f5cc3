"""What an import costs, and who may import what: the parts that import-linter cannot say."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
HEAVY = {"asyncssh", "cryptography", "httpx", "matplotlib", "numpy", "pandas", "rich", "structlog", "torch", "trio"}


def modules_after(statement: str) -> set[str]:
    """The modules a fresh interpreter has after the statement and had not before."""
    program = (
        f"import sys, json; before = set(sys.modules); {statement}; print(json.dumps([*(set(sys.modules) - before)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import outrider", "from outrider import Local, Pool, compute, plugins, shard"])
def test_import_brings_nothing_heavy(statement: str) -> None:
    assert {module.partition(".")[0] for module in modules_after(statement)} & HEAVY == set()


def test_bare_import_is_lazy() -> None:
    """Names load when they are first used (PEP 562)."""
    ours = {module for module in modules_after("import outrider") if module.startswith("outrider.")}
    assert len(ours) <= 2, ours


def test_every_public_name_loads() -> None:
    modules_after("import outrider; [getattr(outrider, name) for name in outrider.__all__]")


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a module of the package imports; its own package is called outrider."""
    package = ["outrider", *path.relative_to(SRC).with_suffix("").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*base, *([node.module] if node.module else [])])


@pytest.mark.parametrize("folder", ["wire", "node", "image/installer", "volumes"])
def test_what_runs_on_a_node_needs_only_the_stdlib_msgpack_and_cloudpickle(folder: str) -> None:
    allowed = sys.stdlib_module_names | {"msgpack", "cloudpickle"}
    ours = (
        "outrider.engine.wire",
        "outrider.engine.node",
        "outrider.engine.image.installer",
        "outrider.engine.volumes",
        "outrider.lazy_dataclass",
        "outrider.lazy_named_tuple",
    )
    paths = [*(SRC / "engine" / folder).rglob("*.py")]
    foreign = {
        f"{path.relative_to(SRC)}: {name}"
        for path in paths
        for name in imports(path)
        if name.partition(".")[0] not in allowed and not f"{name}.".startswith(tuple(f"{our}." for our in ours))
    }
    assert paths
    assert foreign == set()
