"""The README's picture is drawn from the recording in the repository."""

from __future__ import annotations

import json
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "pictures" / "losses.py"))
RECORDING = json.loads(SCRIPT["RECORDING"].read_text())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picture_is_drawn_from_the_recording(theme: str) -> None:
    text = SCRIPT["drawn"](RECORDING, theme)
    assert SCRIPT["PICTURES"][theme].read_text() == text
    ET.fromstring(text)


def test_recording_is_of_a_run_that_loses_nodes_and_goes_on() -> None:
    """Rank 0 is among the lost ones, each loss begins a generation, and none begins at the first step again."""
    losses, points = RECORDING["losses"], RECORDING["points"]
    generations = sorted({generation for generation, *_ in points})
    assert len(losses) >= 3
    assert 0 in {loss["rank"] for loss in losses}
    assert len(generations) == len(losses) + 1
    starts = [min(step for number, step, *_ in points if number == generation) for generation in generations]
    assert starts[0] == 1
    assert starts == sorted(set(starts))
    assert {step for _, step, *_ in points} == set(range(1, max(step for _, step, *_ in points) + 1))


def test_picture_marks_each_loss() -> None:
    text = SCRIPT["PICTURES"]["light"].read_text()
    assert len(re.findall(r"<circle ", text)) == len(RECORDING["losses"])
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_points_are_means_of_ranks_in_the_order_of_steps() -> None:
    logged = [(1, 2, 0.5, 4.0), (1, 1, 0.1, 6.0), (1, 2, 0.7, 2.0), (2, 2, 1.5, 1.0)]
    assert SCRIPT["points"](logged) == [[1, 1, 0.1, 6.0], [1, 2, 0.7, 3.0], [2, 2, 1.5, 1.0]]


def test_readme_shows_the_picture() -> None:
    readme = (ROOT / "README.md").read_text()
    for picture in SCRIPT["PICTURES"].values():
        assert str(picture.relative_to(ROOT)) in readme
