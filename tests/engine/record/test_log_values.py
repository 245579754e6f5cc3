"""What may be logged is taken as it is meant, and what may not is named in the error."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from outrider.engine.record import log_calls
from outrider.engine.record.log_calls import checked_metrics, checked_params, checked_step, checked_text


class Item:
    """As a tensor: it has one element, or several."""

    shape = (2, 1)

    def __init__(self, value: float | None) -> None:
        self._value = value

    def item(self) -> float:
        if self._value is None:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self._value


@pytest.mark.parametrize(
    "value",
    [3, 3.0, np.float32(3), np.int64(3), np.array(3), np.array([[3]]), Item(3.0), Decimal(3), Fraction(3), True + 2],
)
def test_numbers_of_any_kind_become_floats(value: Any) -> None:
    found = checked_metrics({"loss": value})
    assert found == {"loss": 3.0}
    assert type(found["loss"]) is float


def test_tensors_become_floats() -> None:
    torch = pytest.importorskip("torch")
    given = {"one": torch.tensor(2.0, dtype=torch.bfloat16), "grad": torch.tensor([2.0], requires_grad=True)}
    assert checked_metrics(given) == {"one": 2.0, "grad": 2.0}
    with pytest.raises(TypeError, match=r"'loss' is no single number, but torch.Tensor of shape \(2,\)"):
        checked_metrics({"loss": torch.zeros(2)})


def test_nan_and_infinities_stay() -> None:
    found = checked_metrics({"a": math.nan, "b": np.float32(math.inf)})
    assert math.isnan(found["a"])
    assert found["b"] == math.inf


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0.3", "'loss' is a text, '0.3': log_text takes texts"),
        (b"0.3", "'loss' is a text"),
        (None, "'loss' is no single number, but NoneType"),
        ([1.0], "'loss' is no single number, but list"),
        (np.zeros(3), r"'loss' is no single number, but numpy.ndarray of shape \(3,\)"),
        (Item(None), r"'loss' is no single number, but .*Item of shape \(2, 1\)"),
        (1 + 2j, "'loss' is no single number, but complex"),
        (10**400, "'loss' is an integer beyond what a float holds"),
    ],
)
def test_what_is_no_number_is_named(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        checked_metrics({"fine": 1.0, "loss": value})


def test_names_and_counts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="log_metrics takes a mapping of names to numbers, not float"):
        checked_metrics(0.3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="log_metrics takes texts as names, not int"):
        checked_metrics({1: 0.3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="a name has 1 to 128 characters, and 'xxx"):
        checked_metrics({"x" * 129: 0.3})
    with pytest.raises(ValueError, match="at most 500 values at a time, not 501"):
        checked_metrics({str(n): 0.3 for n in range(501)})
    monkeypatch.setattr(log_calls, "_MOST_KNOWN", len(log_calls._known))
    checked_metrics({"another": 1.0})
    assert "another" not in log_calls._known


@pytest.mark.parametrize("step", [7, np.int32(7)])
def test_a_step_is_an_integer(step: Any) -> None:
    assert checked_step(step) == 7
    assert checked_step(None) is None


@pytest.mark.parametrize(("step", "error"), [(7.0, TypeError), ("7", TypeError), (2**63, ValueError)])
def test_another_step_is_refused(step: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="step"):
        checked_step(step)


def test_params_are_json_and_what_is_none_becomes_text() -> None:
    deep: list[Any] = []
    for _ in range(20):
        deep = [deep]
    given = {
        "lr": 0.1,
        "layers": (1, 2),
        "opt": {"name": "sgd", 3: None},
        "on": True,
        "nan": math.nan,
        "cls": Item,
        "d": deep,
    }
    found = json.loads(checked_params(given))
    assert (found["lr"], found["layers"], found["opt"], found["on"]) == (0.1, [1, 2], {"name": "sgd", "3": None}, True)
    assert (found["nan"], found["cls"]) == ("nan", str(Item))
    with pytest.raises(ValueError, match="at most 65536 characters of JSON at a time, and these are 70"):
        checked_params({"text": "x" * 70_000})
    with pytest.raises(TypeError, match="log_params takes a mapping"):
        checked_params([1])  # type: ignore[arg-type]


def test_a_text_is_one_and_not_too_long() -> None:
    assert checked_text("fine") == "fine"
    with pytest.raises(TypeError, match="log_text takes a text, not int"):
        checked_text(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 65536 characters, not 65537: write it to a file"):
        checked_text("x" * 65_537)
