"""`outrider ps`: show pools of cloud machines."""

from __future__ import annotations

import anyio
from rich.console import Console

from .pool_search import NO_OTHER_PLACES, NOTHING, UNKNOWN, AsJson, SearchOptions, find_pools, open_journal
from .pool_table import pool_table, print_json, print_unanswered

OWNERS = {
    "alive": "owned by {owner}",
    "dead": "owner is dead ({owner}): see `outrider gc`",
    "elsewhere": "owner is elsewhere: {owner}",
    "unknown": "of {owner}, not in the journal here",
}


def ps(
    *,
    where: SearchOptions = NO_OTHER_PLACES,
    as_json: AsJson = False,
) -> int:
    """Show this user's pools of cloud machines.

    Lists the pools that this computer's journal knows, and in the places given those found by their tags. Pools of
    `Local` and `SSH` end with their client and are not shown. Exits with 2 if a place could not be asked.

    Parameters
    ----------
    as_json:
        Print JSON, for programs.
    """
    pools, unanswered = anyio.run(find_pools, open_journal(), where)
    if as_json:
        print_json(pools, [{} for _ in pools])
    elif pools:
        remarks = [OWNERS[pool.standing].format(owner=pool.owner or "unknown") for pool in pools]
        Console().print(pool_table(pools, "owner", remarks))
    else:
        print("No pools of cloud machines.")
    if not as_json:
        print_unanswered(unanswered)
    return UNKNOWN if unanswered else NOTHING
