"""Prices that a cloud's list says, kept in a file between processes: asked for again when they are old."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from ...lazy_dataclass import dataclass
from ..private import check_private, make_private

MONTH_S: Final = 30 * 86400.0  # on-demand prices rarely change


@dataclass(frozen=True, slots=True)
class Price:
    """USD per hour, and the time of that price (seconds since 1970)."""

    usd: float
    at: float


async def current(
    types: Collection[str],
    known: Mapping[str, Price],
    ask: Callable[[Sequence[str]], Awaitable[Mapping[str, Price]]],
    *,
    now: float,
    kept: Path | None,
) -> dict[str, float]:
    """USD per hour of these types. Types without a known price are left out.

    ``known``: prices that come with the program. Those of the file ``kept`` are newer; what is older than a month, or
    unknown, is asked for, and stored there. ``now``: seconds since 1970.
    """
    found = {**known} | {name: price for name, price in _read(kept).items() if name in types}
    old = [name for name in types if name not in found or found[name].at < now - MONTH_S]
    fresh = await ask(old) if old else {}
    if fresh:
        _write(kept, _read(kept) | {**fresh})
    return {name: price.usd for name, price in (found | {**fresh}).items()}


def _read(kept: Path | None) -> dict[str, Price]:
    if kept is None:
        return {}
    try:
        check_private(kept.parent)  # others could pass expensive machines off as cheap ones
        return {name: Price(float(usd), float(at)) for name, (usd, at) in json.loads(kept.read_text("utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # there is no file, or it is not ours


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
        pass  # without the cache, the price list is asked again
