"""`outrider ps`: list pools with their machines, what they cost, and whether their owners are alive."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ..api.printable import plain
from .lookup import SearchOptions

WORDS = {
    "alive": "owned by {owner}",
    "dead": "owner is dead ({owner}): see `outrider gc`",
    "elsewhere": "owner is elsewhere: {owner}",
    "unknown": "of {owner}, not in the journal here",
}


def ps(
    *,
    where: SearchOptions = SearchOptions(),  # noqa: B008  immutable
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Show this user's pools of cloud machines.

    Lists the pools that this computer's journal knows, and in the places given those found by their tags. Pools of
    `Local` and `SSH` end with their client and are not shown. Exits with 2 if a place could not be asked.

    Parameters
    ----------
    as_json:
        Print JSON, for programs.
    """
    import anyio
    from rich.console import Console

    from . import lookup

    pools, unanswered = anyio.run(lookup.find_pools, lookup.journal(), where)
    if as_json:
        print(lookup.as_json(pools, [{} for _ in pools]))
    else:
        console = Console()
        remarks = [WORDS[pool.standing].format(owner=pool.owner or "unknown") for pool in pools]
        console.print(lookup.table(pools, "owner", remarks) if pools else "No pools of cloud machines.")
        for asked in unanswered:
            console.print(
                f"{lookup.place(asked.place)} could not be asked: {plain(str(asked.error))}", markup=False, style="red"
            )
    return 2 if unanswered else 0
