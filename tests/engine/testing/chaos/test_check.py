"""Two answers are compared as a user would, and the first difference is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from outrider.engine.testing.chaos.check import difference


@dataclass
class Model:
    weights: Any
    name: str = "m"


SAME: list[Any] = [
    1,
    float("nan"),
    "text",
    [1.5, {"a": (1, 2)}],
    np.array([[1.0, np.nan], [3.0, 4.0]]),
    Model(np.arange(3)),
    None,
]
DIFFERENT = [
    (1, 2, "2, undisturbed 1"),
    ([1, {"loss": 0.5}], [1, {"loss": 0.25}], "[1]['loss']: 0.25, undisturbed 0.5"),
    ([1], [1, 2], "[1, 2], undisturbed [1]"),
    ({"a": 1}, {"b": 1}, "{'b': 1}, undisturbed {'a': 1}"),
    (np.zeros(2), np.zeros(3), "array([0., 0., 0.]), undisturbed array([0., 0.])"),
    (np.array([1, 2]), np.array([1, 3]), "array([1, 3]), undisturbed array([1, 2])"),
    (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "array([1., 2.]), undisturbed array([ 1., nan])"),
    (Model(1), Model(2), ".weights: 2, undisturbed 1"),
    ("a", b"a", "b'a', undisturbed 'a'"),
    (None, 0, "0, undisturbed None"),
]


@pytest.mark.parametrize("value", SAME)
def test_equal_answers_are_equal(value: Any) -> None:
    assert difference(value, value) is None


@pytest.mark.parametrize(("expected", "got", "told"), DIFFERENT)
def test_the_first_difference_is_named(expected: Any, got: Any, told: str) -> None:
    assert difference(expected, got) == told


def test_numbers_may_be_as_far_apart_as_was_said() -> None:
    assert difference(1.0, 1.001) is not None
    assert difference(1.0, 1.001, 0.01) is None
    assert difference(np.ones(3), np.ones(3) * 1.001, 0.01) is None
    assert difference(np.ones(3), np.ones(3) * 1.1, 0.01) is not None
