"""Runs are named after what runs, and their ids sort by time."""

from __future__ import annotations

import sys

import pytest

from outrider.engine.record.runs.names import name_in, new_id, usual_name


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("/home/me/train.py", "train"),
        ("my model (2).py", "my-model-2"),
        ("/venv/lib/ipykernel_launcher.py", "notebook"),
        ("/home/me/package/__main__.py", "package"),
        ("-c", "python"),
        ("", "python"),
        ("___.py", "python"),
        (f"{'x' * 60}.py", "x" * 40),
    ],
)
def test_a_run_is_named_after_its_script(script: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    assert usual_name() == name
    assert name_in(new_id(name, 1e9)) == name


def test_ids_sort_by_time_and_differ() -> None:
    assert new_id("b", 1e9) < new_id("a", 1e9 + 1)
    assert len({new_id("a", 1e9) for _ in range(20)}) > 1


@pytest.mark.parametrize("other", ["notes", "20261125-031113-train", "x-20261125-031113-train-1a2b", "a-b-1a2b"])
def test_other_folders_are_no_runs(other: str) -> None:
    assert name_in(other) is None
