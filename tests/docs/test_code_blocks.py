"""The Python in the pages works: a block is run, or it is a file that is, or its page says why it is only compiled.

A comment on the line before a block says which. None: it is run as a program of its own. ``<!-- run: PATH -->``: it is
the whole of that file, which the tests of the examples run. ``<!-- compile: WHY -->``: it cannot be run here; where it
imports `Pool` it is a program all the same.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>.+?) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
TIME_LIMIT_S = 60


class Block(NamedTuple):
    page: Path
    line: int
    mark: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(page, line, match["mark"] or "run", match["code"]))
    return found


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_block_works(block: Block, tmp_path: Path) -> None:
    kind, _, argument = block.mark.partition(": ")
    if kind == "run" and not argument:
        program = tmp_path / "block.py"
        program.write_text(block.code)
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, program],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    elif kind == "run":
        assert argument.startswith("examples/")
        assert block.code == (ROOT / argument).read_text()
    else:
        assert kind == "compile"
        assert argument, "say why"
        flags = 0 if "Pool" in imported(block.code) else ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(block.code, block.name, "exec", flags=flags, dont_inherit=True)


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_a_pool_of_machines_with_prices_or_accelerators_says_whose(block: Block) -> None:
    """Without a provider they would be this computer's."""
    for node in ast.walk(parsed(block.code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Pool", "Spec"):
            given = {each.arg for each in node.keywords}
            assert "provider" in given or not given & {"accelerator", "allocation", "max_cost", "max_hourly_cost"}


def parsed(code: str) -> ast.AST:
    return compile(code, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def imported(code: str) -> set[str]:
    return {each.name for node in ast.walk(parsed(code)) if isinstance(node, ast.ImportFrom) for each in node.names}


def test_readme_shows_the_first_example() -> None:
    assert any(block.mark == "run: examples/01_quickstart.py" for block in blocks() if block.page == ROOT / "README.md")
