"""The Python in the pages works: a block is run, or it is a file that is, or its page says why it is only compiled.

A comment on the line before a block says which. None: it is run as a program of its own. ``<!-- run: PATH -->``: it is
the whole of that file, which the tests of the examples run. ``<!-- machines: WHY -->``: it is run with nodes of this
computer in place of machines elsewhere (see ``stand_in``), and with programs that act NVIDIA's tools where they are
named. ``<!-- frameworks: MODULE, ... -->``: the same, where these modules are installed, as `make test-frameworks` does
it. ``<!-- pytest: WHY -->``: it is run by pytest. ``<!-- script: OPTIONS -->``: it is run by `outrider run OPTIONS`.
``<!-- compile: WHY -->``: it cannot be run here; where it imports `Pool` it is a program all the same.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>.+?) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
STAND_IN = Path(__file__).parent / "stand_in.py"
TOOLS = ROOT / "tests" / "engine" / "plugins" / "test_gpu_sharing.py"
TIME_LIMIT_S = 500
RUN = {"run", "machines", "frameworks", "pytest", "script"}
OUTRIDER_RUN = ["-c", "from outrider.engine.cli.main import main; main()", "run"]


class Block(NamedTuple):
    page: Path
    line: int
    mark: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def kind(self) -> str:
        return self.mark.partition(": ")[0]

    @property
    def argument(self) -> str:
        return self.mark.partition(": ")[2]


@functools.cache
def blocks() -> list[Block]:
    found = []
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(page, line, match["mark"] or "run", match["code"]))
    return found


def cases() -> Iterator[ParameterSet]:
    for block in blocks():
        marks = []
        if block.kind == "frameworks":
            absent = [name for name in block.argument.split(", ") if find_spec(name) is None]
            reason = f"{absent} are there in make test-frameworks"
            marks = [pytest.mark.frameworks, pytest.mark.skipif(bool(absent), reason=reason)]
        yield pytest.param(block, id=block.name, marks=marks)


@pytest.mark.parametrize("block", list(cases()))
def test_block_works(block: Block, tmp_path: Path) -> None:
    if block.kind == "run" and block.argument:
        assert block.argument.startswith("examples/")
        assert block.code == (ROOT / block.argument).read_text()
    elif block.kind in RUN:
        run(block, tmp_path)
    else:
        assert block.kind == "compile"
        assert block.argument, "say why"
        flags = 0 if "Pool" in imported(block.code) else ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(block.code, block.name, "exec", flags=flags, dont_inherit=True)


def run(block: Block, folder: Path) -> None:
    program = folder / "test_block.py"
    program.write_text(block.code)
    env = dict(os.environ)
    ways = {
        "run": [],
        "pytest": ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
        "script": [*OUTRIDER_RUN, *block.argument.split()],
    }
    before = ways.get(block.kind, [str(STAND_IN)])
    if "plugins.mig(" in block.code or "plugins.mps(" in block.code:
        acted_tools(folder)
        env |= {"PATH": f"{folder}{os.pathsep}{env['PATH']}", "CUDA_VISIBLE_DEVICES": "0"}
    with tempfile.TemporaryDirectory() as short:  # Ray puts sockets there: their paths have 107 bytes at most
        done = subprocess.run(
            [sys.executable, *before, program],
            cwd=folder,
            env={**env, "TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr


def acted_tools(folder: Path) -> None:
    """The programs that act nvidia-smi and the MPS daemon, as the tests of these plugins have them."""
    runpy.run_path(str(TOOLS))["Tools"](folder)


def guides() -> list[Path]:
    return sorted(page for page in (ROOT / "docs" / "guides").rglob("*.md") if page.name != "index.md")


@pytest.mark.parametrize("page", guides(), ids=lambda page: page.stem)
def test_a_guide_begins_with_an_example_that_runs(page: Path) -> None:
    first = next(block for block in blocks() if block.page == page)
    assert first.kind in RUN, f"{first.name} is not run"
    assert first.kind == "script" or "Pool(" in first.code or {"EC2", "chaos", "checkpoint"} & imported(first.code)


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_a_pool_of_machines_with_prices_or_accelerators_says_whose(block: Block) -> None:
    """Without a provider they would be this computer's."""
    for node in ast.walk(parsed(block.code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Pool", "Spec"):
            given = {each.arg for each in node.keywords}
            if node.func.id == "Spec" and node.args:
                given.add("provider")  # which may stand first
            assert "provider" in given or not given & {"accelerator", "allocation", "max_cost", "max_hourly_cost"}


def parsed(code: str) -> ast.AST:
    return compile(code, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def imported(code: str) -> set[str]:
    return {each.name for node in ast.walk(parsed(code)) if isinstance(node, ast.ImportFrom) for each in node.names}
