"""The output of `outrider ps` and `outrider gc`: pools as tables and as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..api.printable import one_line, plain

if TYPE_CHECKING:
    from ...providers.shared.pool_lock import Place
    from ...providers.survey import PlaceAnswer
    from .pool_search import FoundPool

FILE_COLUMNS = 1000  # width of a table that goes to a file or a pipe


def pool_table(pools: Sequence[FoundPool], last: str, remarks: Sequence[str]) -> Table:
    """Return a table with a row for each pool and place. ``last``: title of the last column; ``remarks``: its cells."""
    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("pool", "where", "machines", "age", "USD/h"):
        shown.add_column(column, justify="right" if column in ("age", "USD/h") else "left", no_wrap=True)
    shown.add_column(last)
    for pool, remark in zip(pools, remarks, strict=True):
        cells = (pool.pool, place(pool.place), machines(pool), age(pool, time.time()), price(pool), remark)
        shown.add_row(*(Text(one_line(cell)) for cell in cells))
    return shown


def console_for_tables() -> Console:
    """Return a console that cuts tables to the terminal's width. Output to a file or another program is not cut."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_COLUMNS)


def print_json(pools: Sequence[FoundPool], more: Sequence[dict[str, object]]) -> None:
    """Print a JSON list with an object for each pool: its known facts, and the command's fields in ``more``."""
    rows = [
        {**asdict(pool), "place": dict(pool.place), "hourly_usd": pool.hourly_usd, **own}
        for pool, own in zip(pools, more, strict=True)
    ]
    print(json.dumps(rows, indent=2))


def print_unanswered(unanswered: Sequence[PlaceAnswer]) -> None:
    for answer in unanswered:
        where = f"{answer.provider} {place(answer.place)}".strip()
        message = f"{where} could not be asked: {plain(answer.error)}"
        Console(stderr=True).print(message, markup=False, style="red", soft_wrap=True)


def place(where: Place) -> str:
    """Return a text about a place: its region, or its name in a cloud without regions, and the profile used."""
    first = [where["region"]] if "region" in where else []
    return (
        " ".join(part for part in (*first, *(where[key] for key in sorted(where.keys() - {"region"}))) if part)
        or "nowhere"
    )


def machines(pool: FoundPool) -> str:
    if pool.error:
        return "?"
    kinds = Counter(f"{machine.kind} {machine.market}" for machine in pool.machines)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"


def age(pool: FoundPool, now: float) -> str:
    if not pool.machines:
        return ""
    return lasted(now - min(machine.launched_at for machine in pool.machines))


def lasted(seconds: float) -> str:
    minutes = max(0, int(seconds)) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def price(pool: FoundPool) -> str:
    if not pool.machines:
        return ""
    return "?" if pool.hourly_usd is None else f"{pool.hourly_usd:.2f}"
