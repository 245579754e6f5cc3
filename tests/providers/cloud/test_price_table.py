"""Prices that a cloud's list says, and those that come with the program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio.testing

from outrider.providers.cloud.caching import MONTH_S, Price, bundled_table, cheapest_first, current_prices

pytestmark = pytest.mark.anyio
NOW = 1_800_000_000.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


async def test_what_is_old_or_unknown_is_asked_for_in_lots_and_kept(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    async def ask(types: Sequence[str]) -> dict[str, float]:
        asked.append(types)
        return dict.fromkeys(types, 2.0)

    kept = tmp_path / "prices.json"
    known = {"new": Price(1.0, NOW), "old": Price(1.0, NOW - MONTH_S - 1)}
    types = ["new", "old", "x", "y"]
    found = await current_prices(types, known, ask, now=NOW, kept=kept, at_a_time=2, patience_s=5.0)
    assert found == {"new": 1.0, "old": 2.0, "x": 2.0, "y": 2.0}
    assert asked == [["old", "x"], ["y"]]
    assert await current_prices(types, known, ask, now=NOW + 1, kept=kept, at_a_time=2, patience_s=5.0) == found
    assert len(asked) == 2


async def test_the_lots_that_were_answered_count_when_patience_ends() -> None:
    async def ask(types: Sequence[str]) -> dict[str, float]:
        if types == ["b"]:
            await anyio.sleep_forever()
        return dict.fromkeys(types, 2.0)

    began = anyio.current_time()
    known = {"b": Price(1.0, 0.0)}
    found = await current_prices(["a", "b", "c"], known, ask, now=NOW, kept=None, at_a_time=1, patience_s=5.0)
    assert found == {"a": 2.0, "b": 1.0}
    assert anyio.current_time() - began == pytest.approx(5.0)


async def test_an_answer_in_an_unknown_form_is_none() -> None:
    async def ask(types: Sequence[str]) -> dict[str, float]:
        raise KeyError("product")

    known = {"a": Price(1.0, 0.0)}
    assert await current_prices(["a", "b"], known, ask, now=NOW, kept=None, at_a_time=1, patience_s=5.0) == {"a": 1.0}


def test_places_are_in_the_order_of_their_lowest_price() -> None:
    assert cheapest_first([("a", 3.0), ("c", 2.0), ("b", 2.0), ("a", 1.0)]) == ["a", "b", "c"]
    assert cheapest_first([]) == []


def test_the_table_is_beside_its_module(tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text(json.dumps({"as_of": "2026-11-26"}))
    assert bundled_table(str(tmp_path / "prices.py")) == {"as_of": "2026-11-26"}
