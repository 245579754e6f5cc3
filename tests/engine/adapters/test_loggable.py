"""What frameworks hand over is logged as far as it can be, and ends no training."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from outrider import SpecError, integrations
from outrider.engine.adapters.loggable import is_logging, log_numbers, log_settings
from outrider.engine.runtime.instance_info import VARIABLE, instance_info

Received = Callable[[], list[dict[str, Any]]]


def test_numbers_are_logged_and_the_rest_is_left_out(received: Received) -> None:
    log_numbers({"loss": 0.5, "run": "first", "grads": [1, 2], "x" * 200: 1, 7: 2, "": 3}, 4)
    log_numbers({"run": "first"}, 5)
    assert received() == [{"step": 4, "values": {"loss": 0.5, "x" * 128: 1.0, "7": 2.0}}]


def test_more_numbers_than_one_call_takes_are_several(received: Received) -> None:
    log_numbers({f"m{number}": number for number in range(1001)}, None)
    assert [len(each["values"]) for each in received()] == [500, 500, 1]


def test_settings_that_are_too_large_leave_the_others_alone(received: Received) -> None:
    log_settings({"lr": 0.1, "vocabulary": "x" * 70_000, "layers": {"count": 2}})
    assert received() == [{"params": {"lr": 0.1}}, {"params": {"layers": {"count": 2}}}]


def test_only_the_head_logs_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_logging("head")
    facts = {name: getattr(instance_info(), name) for name in type(instance_info()).__match_args__}
    monkeypatch.setenv(VARIABLE, json.dumps({**facts, "peers": [], "rank": 1, "is_head": False}))
    assert (is_logging("head"), is_logging("all")) == (False, True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: integrations.keras_callback(ranks="some"),  # type: ignore[arg-type]
        lambda: integrations.keras_callback(every=0),
        lambda: integrations.lightning_logger(ranks="0"),  # type: ignore[arg-type]
    ],
)
def test_options_that_mean_nothing_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(SpecError, match=r"integrations\.\w+: (ranks|every)"):
        make()
