"""`outrider gc`: find what dead clients left in clouds, and with ``--apply`` end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from ...providers.errors import NotGone, ProviderError
from ...providers.journal import Journal, PoolOwned
from ..api.printable import plain
from . import clouds
from .leftovers import PoolLeft, Verdict, verdict
from .lookup import SearchOptions

NOTHING, SOMETHING, UNKNOWN = 0, 1, 2  # exit codes: what is left


def gc(
    *,
    where: SearchOptions = SearchOptions(),  # noqa: B008  immutable
    apply: Annotated[bool, Parameter(negative="")] = False,
    foreign: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Show what dead clients left in clouds; with --apply, remove it.

    Looks in the places that this computer's journal knows, and in those given. A pool whose owner is alive on this
    computer is never touched. Exits with 0 when nothing is left of this computer's dead pools, with 1 when something
    is left, and with 2 when a place could not be asked.

    Parameters
    ----------
    apply:
        Remove what was found. Without this it is only shown.
    foreign:
        Also remove pools of other computers, pools that this computer's journal does not know, and machines that only
        have the tags of a pool that it knows. Be sure that nobody uses them.
    as_json:
        Print JSON, for programs.
    """
    import anyio
    from rich.console import Console

    from . import lookup

    journal = lookup.journal()
    pools, unanswered = anyio.run(lookup.find_pools, journal, where)
    verdicts = [verdict(pool, foreign=foreign) for pool in pools]
    ends = anyio.run(_remove, journal, pools, verdicts) if apply else [""] * len(pools)
    if as_json:
        own = [
            {"remove": each.remove, "why": each.why, "removed": apply and each.remove and not end, "failure": end}
            for each, end in zip(verdicts, ends, strict=True)
        ]
        print(lookup.as_json(pools, list(own)))
    else:
        console = Console()
        remarks = [_remark(each, end, apply=apply) for each, end in zip(verdicts, ends, strict=True)]
        console.print(lookup.table(pools, "what becomes of it", remarks) if pools else "No pools.")
        if not apply and any(each.remove for each in verdicts):
            console.print("Nothing was touched: `outrider gc --apply` removes it.")
        for asked in unanswered:
            console.print(
                f"{lookup.place(asked.place)} could not be asked: {plain(str(asked.error))}", markup=False, style="red"
            )
    return _status(pools, verdicts, ends, apply=apply, unanswered=bool(unanswered))


def _status(
    pools: Sequence[PoolLeft], verdicts: Sequence[Verdict], ends: Sequence[str], *, apply: bool, unanswered: bool
) -> int:
    for pool, each, end in zip(pools, verdicts, ends, strict=True):
        removed = apply and each.remove and not end
        if not removed and (each.remove or (pool.ours and not pool.error)):
            return SOMETHING
    return UNKNOWN if unanswered else NOTHING


async def _remove(journal: Journal, pools: Sequence[PoolLeft], verdicts: Sequence[Verdict]) -> list[str]:
    """Remove the pools one after another. For each: why it is not gone, or ""."""
    return [await _removed(journal, pool) if each.remove else "" for pool, each in zip(pools, verdicts, strict=True)]


async def _removed(journal: Journal, pool: PoolLeft) -> str:
    from ..client.takeover import lease_kept
    from ..serialization.error_translation import by_lease

    cloud = clouds.CLOUDS[pool.provider] if pool.place else None
    try:
        if cloud is not None and pool.standing == "unknown":
            await cloud.sweep_others(pool.place, pool.pool, journal)
            return ""
        with journal.own(pool.pool, pool.provider, adopt=True) as owned:  # so that no client attaches meanwhile
            if cloud is not None:
                await cloud.sweep(pool.place, pool.pool, journal, lease_s=lease_kept(owned))
            journal.settled(pool.pool, pool.place or None)
    except PoolOwned as error:
        return f"it has found an owner meanwhile: {error.owner or error}"
    except ProviderError as error:
        ends = isinstance(error, NotGone) and error.costs and error.by
        return f"{error}; they end themselves {by_lease(ends)}" if ends else str(error)
    return ""


def _remark(each: Verdict, end: str, *, apply: bool) -> str:
    if not each.remove:
        return f"kept: {each.why}"
    if end:
        return f"not removed: {end}"
    return f"{'removed' if apply else 'to remove'}: {each.why}"
