"""Names of modules that the guides once gave to users."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name"), [("metrics", "newest"), ("metrics", "read_metrics"), ("names", "runs_folder")]
)
def test_former_name_is_the_same_object(module: str, name: str) -> None:
    former = importlib.import_module(f"outrider.engine.runs.{module}")
    present = importlib.import_module(f"outrider.engine.record.runs.{module}")
    assert getattr(former, name) is getattr(present, name)
