"""Prices of a cloud, from the table in this package, and from the cloud's price list (cached on disk)."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio

from ...lazy_dataclass import dataclass
from ..private import check_private, make_private

MONTH_S: Final = 30 * 86400.0  # the oldest price to use without a new request; on-demand prices rarely change


@dataclass(frozen=True, slots=True)
class Price:
    """A price in USD per hour, and its date (seconds since 1970)."""

    usd: float
    at: float


@cache
def bundled_table(module: str) -> Mapping[str, Any]:
    """Return the table in ``prices.json`` beside a module. ``module``: the module's ``__file__``."""
    table: dict[str, Any] = json.loads(Path(module).with_name("prices.json").read_text(encoding="utf-8"))
    return table


def cheapest_first(prices: Iterable[tuple[str, float]]) -> list[str]:
    """Return the different places in these (place, price) pairs, ordered by the lowest price of each place."""
    lowest: dict[str, float] = {}
    for place, price in prices:
        lowest[place] = min(price, lowest.get(place, math.inf))
    return sorted(lowest, key=lambda place: (lowest[place], place))


async def current(
    types: Collection[str],
    known: Mapping[str, Price],
    ask: Callable[[Sequence[str]], Awaitable[Mapping[str, float]]],
    *,
    now: float,
    kept: Path | None,
    at_a_time: int,
    patience_s: float,
) -> dict[str, float]:
    """Return the prices of these types in USD per hour. Types without a known price are left out; no error is raised.

    ``known``: prices from the package's table; prices in the cache file ``kept`` are newer. Prices that are missing or
    older than a month are requested, ``at_a_time`` types per call, and cached. If the price list does not answer all
    calls within ``patience_s``, refuses, or answers in an unknown form, old prices are used. ``now``: seconds since
    1970.
    """
    prices = {**known} | {name: price for name, price in _read(kept).items() if name in types}
    old = [name for name in types if name not in prices or prices[name].at < now - MONTH_S]
    fresh: dict[str, Price] = {}
    # any failure of the price list is ignored, because the old prices can be used
    with anyio.move_on_after(patience_s), suppress(Exception):
        for start in range(0, len(old), at_a_time):
            answer = await ask(old[start : start + at_a_time])
            fresh |= {name: Price(usd, now) for name, usd in answer.items()}
    if fresh:
        _write(kept, _read(kept) | fresh)
    return {name: price.usd for name, price in (prices | fresh).items()}


def _read(kept: Path | None) -> dict[str, Price]:
    if kept is None:
        return {}
    try:
        # in a folder that others may write, they could set a low price for an expensive machine
        check_private(kept.parent)
        return {name: Price(float(usd), float(at)) for name, (usd, at) in json.loads(kept.read_text("utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # there is no cache file, others may write to its folder, or it is damaged


def _write(kept: Path | None, prices: Mapping[str, Price]) -> None:
    if kept is None:
        return
    text = json.dumps({name: [price.usd, price.at] for name, price in sorted(prices.items())}, indent=0)
    try:
        make_private(kept.parent)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=kept.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(kept)
    except OSError:
        pass  # if the cache cannot be written, the next process requests the price list again
