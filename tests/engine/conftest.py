"""What tests of the engine share."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FUNCTIONS = """
from collections.abc import Iterator

from outrider import compute

@compute
def double(x: int) -> int:
    return 2 * x

@compute(name="upward")
def count(n: int) -> Iterator[int]:
    yield from range(n)

class Shop:
    @staticmethod
    @compute
    def price(x: int) -> int:
        return x
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with `@compute` functions that other processes can import too, when they have our `sys.path`."""
    (tmp_path / "importable_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("importable_functions")
    sys.modules.pop("importable_functions", None)
