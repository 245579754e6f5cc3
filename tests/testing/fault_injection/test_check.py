"""Two answers are compared as a user would, and the first difference is named."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from outrider.testing.fault_injection.check import difference


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
    10**400,
    [np.inf, -np.inf],
    np.array([np.inf, 1.0]),
    np.array([True, False]),
    np.array([]),
    np.array("text"),
]
DIFFERENT: list[tuple[Any, Any, str]] = [
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
    (0.5, float("nan"), "nan, undisturbed 0.5"),
    (float("inf"), 5.0, "5.0, undisturbed inf"),
    (2**60, 2**60 + 1, f"{2**60 + 1}, undisturbed {2**60}"),
    (1.5, 10**400, f"1{'0' * 76}..., undisturbed 1.5"),
    (np.float64(0.5), float("nan"), "nan, undisturbed np.float64(0.5)"),
    (np.float64(0.5), np.float64("nan"), "np.float64(nan), undisturbed np.float64(0.5)"),
    (np.array([1.0, 2.0]), np.array([np.nan, np.nan]), "array([nan, nan]), undisturbed array([1., 2.])"),
    (np.array([np.inf, 1.0]), np.array([5.0, 1.0]), "array([5., 1.]), undisturbed array([inf, 1.])"),
    (np.array([1.0]), np.array([-np.inf]), "array([-inf]), undisturbed array([1.])"),
    (np.array([np.inf]), np.array([-np.inf]), "array([-inf]), undisturbed array([inf])"),
    (np.array(2**60), np.array(2**60 + 1), f"array({2**60 + 1}), undisturbed array({2**60})"),
    (np.array([True, True]), np.array([True, False]), "array([ True, False]), undisturbed array([ True, True])"),
    (np.array("a"), np.array("b"), "array('b', dtype='<U1'), undisturbed array('a', dtype='<U1')"),
    (np.array([1j]), np.array([2j]), "array([0.+2.j]), undisturbed array([0.+1.j])"),
    ({"w": np.ones(1)}, {"w": np.ones(1), "b": 1}, "{'w': array([1.]), 'b': 1}, undisturbed {'w': array([1.])}"),
    ((np.zeros(2), 1), (np.zeros(2),), "(array([0., 0.]),), undisturbed (array([0., 0.]), 1)"),
]


@pytest.mark.parametrize("rtol", [0.0, 0.01])
@pytest.mark.parametrize("value", SAME, ids=range(len(SAME)))
def test_equal_answers_are_equal(value: Any, rtol: float) -> None:
    assert difference(value, deepcopy(value), rtol) is None


@pytest.mark.parametrize("rtol", [0.0, 0.01])
@pytest.mark.parametrize(("expected", "got", "told"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_the_first_difference_is_named(expected: Any, got: Any, told: str, rtol: float) -> None:
    assert difference(expected, got, rtol) == told


def test_rtol_allows_that_difference() -> None:
    assert difference(1.0, 1.001) is not None
    assert difference(1.0, 1.001, 0.01) is None
    assert difference(np.ones(3), np.ones(3) * 1.001, 0.01) is None
    assert difference(np.ones(3), np.ones(3) * 1.1, 0.01) is not None
    assert difference(np.array([np.inf, np.nan, 1.0]), np.array([np.inf, np.nan, 1.001]), 0.01) is None
    assert difference(np.float64(1.0), 1.001, 0.01) is None
    assert difference(np.array([1j]), np.array([1.001j]), 0.01) is None


def test_whole_numbers_are_equal_or_are_not() -> None:
    assert difference(1000, 1001, 0.01) is not None
    assert difference(np.array([1000]), np.array([1001]), 0.01) is not None
