"""`outrider ps`: shows running pools."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated

import anyio
from rich.table import Table
from rich.text import Text

from ...providers.registry import ProviderName
from ..api.printable import one_line
from ..api.quantities import cents
from .exit_codes import DONE, UNKNOWN
from .flags import AsJson, Flag
from .pool_search import NO_OTHER_PLACES, SearchOptions, find_pools, open_journal
from .pool_table import console_for_tables, lasted, machines, place, price, print_unanswered
from .pools_here import ShownPool, pools_here

OWNERS = {
    "alive": "owned by {owner}",
    "dead": "owner is dead ({owner}): see `outrider gc`",
    "elsewhere": "owner is elsewhere: {owner}",
    "unknown": "of {owner}, not in the journal here",
}
COLUMNS = ("pool", "where", "nodes", "age", "USD", "USD/h", "owner")


def ps(
    *,
    where: SearchOptions = NO_OTHER_PLACES,
    provider: Annotated[list[ProviderName] | None, Flag] = None,
    as_json: AsJson = False,
) -> int:
    """Show your running pools, wherever their nodes are.

    Local pools are found by their folders, other pools by their records and by this computer's journal (its list of
    requested machines). In the places that the options name, pools in clouds are found by the tags of their machines. A
    pool of the provider `SSH` without a record is known only to its own program, and is not shown. Exits with 2 if a
    place could not be searched.

    Example: `outrider ps --all-regions --json`

    Parameters
    ----------
    provider:
        Only pools of this provider. Can be repeated.
    as_json:
        Print JSON, for programs.
    """
    surveyed, unanswered = anyio.run(find_pools, open_journal(), where)
    pools = [pool for pool in pools_here(surveyed) if not provider or pool.facts.provider in provider]
    if as_json:
        print(json.dumps([pool.as_json() for pool in pools], indent=2))
    elif pools:
        console_for_tables().print(_table(pools))
    else:
        print("No pools.")
    unanswered = [answer for answer in unanswered if not provider or answer.provider in provider]
    print_unanswered(unanswered)
    return UNKNOWN if unanswered else DONE


def _table(pools: Sequence[ShownPool]) -> Table:
    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in COLUMNS[:-1]:
        shown.add_column(column, justify="right" if column in ("age", "USD", "USD/h") else "left", no_wrap=True)
    shown.add_column(COLUMNS[-1])
    now = time.time()
    for pool in pools:
        shown.add_row(*(Text(one_line(cell)) for cell in cells(pool, now)))
    return shown


def cells(pool: ShownPool, now: float) -> tuple[str, ...]:
    facts = pool.facts
    return (
        facts.pool,
        " ".join((facts.provider, place(facts.place) if facts.place else "")).strip(),
        _nodes(pool),
        "" if pool.since is None else lasted(now - pool.since),
        "" if pool.spent_usd is None else cents(pool.spent_usd),
        price(facts) if facts.machines else "" if pool.hourly_usd is None else f"{pool.hourly_usd:.2f}",
        OWNERS[facts.standing].format(owner=facts.owner or "unknown"),
    )


def _nodes(pool: ShownPool) -> str:
    """Return a text about a pool's nodes: how many are ready (if known), and its known machines in a cloud."""
    ready = str(pool.nodes) if pool.wanted_nodes is None else f"{pool.nodes} of {pool.wanted_nodes}"
    kinds = machines(pool.facts) if pool.facts.machines or pool.facts.error or pool.nodes is None else ""
    return ": ".join(each for each in ("" if pool.nodes is None else ready, kinds) if each)
