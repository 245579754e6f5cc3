"""The options and the table that `outrider ps` and `outrider gc` share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ...providers.errors import ProviderError
from ...providers.journal import Journal
from ...providers.owners import Place
from ..api.printable import one_line, plain
from . import clouds
from .leftovers import PlaceAnswer, PoolLeft, pools_left

if TYPE_CHECKING:
    from rich.table import Table


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Places to look in, besides those that this computer's journal knows.

    Parameters
    ----------
    region:
        An AWS region; may be given several times.
    all_regions:
        Every AWS region of the account.
    profile:
        The profile in ~/.aws to use for them. Default: that of the AWS command line.
    endpoint_url:
        The endpoint of another cloud with EC2's interface, to use for them.
    """

    region: Annotated[list[str] | None, Parameter(negative="")] = None
    all_regions: Annotated[bool, Parameter(negative="")] = False
    profile: str | None = None
    endpoint_url: str | None = None

    @property
    def access(self) -> dict[str, str]:
        given = {
            "profile": self.profile or os.environ.get("AWS_PROFILE"),
            "endpoint_url": self.endpoint_url or os.environ.get("AWS_ENDPOINT_URL"),
        }
        return {key: value for key, value in given.items() if value}


def journal() -> Journal:
    """Open this user's journal; exit with 2 where that fails."""
    try:
        return Journal.open()
    except ProviderError as error:
        print(f"outrider: {plain(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None


async def find_pools(book: Journal, where: SearchOptions) -> tuple[list[PoolLeft], list[PlaceAnswer]]:
    """Find all pools; returns them and the places that could not be asked."""
    records = book.records()
    places: list[Place] = [{"region": region, **where.access} for region in where.region or ()]
    answers = await clouds.ask(records, places, everywhere=where.access if where.all_regions else None)
    return pools_left(book.records(), answers), [asked for asked in answers if asked.error]


def table(pools: Sequence[PoolLeft], last: str, remarks: Sequence[str]) -> Table:
    """A table with one row per pool and place. ``remarks`` are the cells of the ``last`` column."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("pool", "where", "machines", "age", "USD/h"):
        shown.add_column(column, justify="right" if column in ("age", "USD/h") else "left", no_wrap=True)
    shown.add_column(last)
    for pool, word in zip(pools, remarks, strict=True):
        cells = (pool.pool, place(pool.place), machines(pool), age(pool, time.time()), price(pool), word)
        shown.add_row(*(Text(one_line(cell)) for cell in cells))
    return shown


def place(where: Place) -> str:
    parts = (where.get("region", ""), where.get("profile", ""), where.get("endpoint_url", ""))
    return " ".join(part for part in parts if part) or "nowhere"


def machines(pool: PoolLeft) -> str:
    if pool.error:
        return "?"
    kinds: dict[str, int] = {}
    for machine in pool.machines:
        kind = f"{machine.kind} {machine.market}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"


def age(pool: PoolLeft, now: float) -> str:
    """The age of the pool's oldest machine."""
    if not pool.machines:
        return ""
    minutes = max(0, int(now - min(machine.launched_at for machine in pool.machines))) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def price(pool: PoolLeft) -> str:
    if not pool.machines:
        return ""
    return "?" if pool.hourly_usd is None else f"{pool.hourly_usd:.2f}"


def as_json(pools: Sequence[PoolLeft], more: Sequence[dict[str, object]]) -> str:
    """A JSON list of all that is known of each pool, joined with the command's own fields in ``more``."""
    rows = [{**asdict(pool), "place": dict(pool.place), "hourly_usd": pool.hourly_usd} for pool in pools]
    return json.dumps([{**row, **own} for row, own in zip(rows, more, strict=True)], indent=2)
