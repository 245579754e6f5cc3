"""What the other tests, and the examples that need a framework, are skipped without."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_every_framework_is_there() -> None:
    for requirement in [*PROJECT["dependency-groups"]["frameworks"], "torch"]:
        assert version(requirement.partition("[")[0])
