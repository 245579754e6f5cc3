"""`outrider gc`: removes machines and other resources that dead programs have left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import anyio

from ...providers.errors import NotGone, ProviderError
from ...providers.shared.journal import Journal, PoolOwned
from . import pool_search
from .common import NOTHING, SOMETHING, UNKNOWN, AsJson, Flag, defect
from .pool_search import NO_OTHER_PLACES, FoundPool, SearchOptions, Verdict, find_pools, open_journal, verdict
from .pool_table import console_for_tables, pool_table, print_json, print_unanswered


def gc(
    *,
    where: SearchOptions = NO_OTHER_PLACES,
    apply: Annotated[bool, Flag] = False,
    foreign: Annotated[bool, Flag] = False,
    as_json: AsJson = False,
) -> int:
    """Show what dead programs left in clouds, clusters and containers; with --apply, remove it.

    Example: `outrider gc --apply`

    Searches every place where programs of this computer requested machines (the journal lists these places), and the
    places that the options name. Pools of programs that are alive on this computer are never touched.

    Exits with 0 if nothing is left of this computer's dead programs, with 1 if something is left, and with 2 if a place
    could not be searched.

    Parameters
    ----------
    apply:
        Remove what was found. Without this option, it is only shown.
    foreign:
        Also remove pools of other computers, pools that this computer's journal does not list, and machines that have
        the tags of a listed pool and are not listed themselves. Make sure that nobody uses them.
    as_json:
        Print JSON, for programs.
    """
    journal = open_journal()
    pools, unanswered = anyio.run(find_pools, journal, where)
    verdicts = [verdict(pool, foreign=foreign, now=time.time()) for pool in pools]
    done = anyio.run(_remove, journal, pools, verdicts) if apply else [Removal()] * len(pools)
    removed = [apply and each.remove and not how.failure for each, how in zip(verdicts, done, strict=True)]
    if as_json:
        own: list[dict[str, object]] = [
            {"remove": each.remove, "why": each.why, "removed": gone, "failure": how.failure, "said": how.note}
            for each, gone, how in zip(verdicts, removed, done, strict=True)
        ]
        print_json(pools, own)
    else:
        _print_verdicts(pools, verdicts, done, apply=apply)
    print_unanswered(unanswered)
    for pool, each, gone in zip(pools, verdicts, removed, strict=True):
        if not gone and (each.remove or (pool.ours and not pool.error)):
            return SOMETHING
    return UNKNOWN if unanswered else NOTHING


class Removal(NamedTuple):
    """The result of removing a pool.

    ``failure``: why the pool still exists; empty if it is removed. ``note``: a remark about a removed pool.
    """

    failure: str = ""
    note: str = ""


async def _remove(journal: Journal, pools: Sequence[FoundPool], verdicts: Sequence[Verdict]) -> list[Removal]:
    """Remove pools. Pools of different providers are removed at the same time, and pools of one provider one after
    another.
    """
    done = [Removal()] * len(pools)

    async def remove_all(provider: str) -> None:
        for at, (pool, each) in enumerate(zip(pools, verdicts, strict=True)):
            if each.remove and pool.provider == provider:
                done[at] = await _removed(journal, pool)

    async with anyio.create_task_group() as tasks:
        for provider in {pool.provider for pool in pools}:
            tasks.start_soon(remove_all, provider)
    return done


async def _removed(journal: Journal, pool: FoundPool) -> Removal:
    from ..client.adoption import lease_kept
    from ..serialization.error_translation import by_lease

    surveyor = pool_search.SURVEYORS[pool.provider] if pool.place else None
    note: str | None = None
    try:
        if surveyor is not None and pool.standing == "unknown":
            note = await surveyor.sweep_others(pool.place, pool.pool, journal)
            return Removal(note=note or "")
        # this process owns the pool during the removal, so that no client can attach to the pool
        with journal.own(pool.pool, pool.provider, adopt=True) as owned:
            if surveyor is not None:
                note = await surveyor.sweep(pool.place, pool.pool, journal, lease_s=lease_kept(owned))
            journal.settled(pool.pool, pool.place or None)
        return Removal(note=note or "")
    except PoolOwned as error:
        return Removal(f"it has found an owner meanwhile: {error.owner or error}")
    except ProviderError as error:
        ends = isinstance(error, NotGone) and error.costs and error.by
        return Removal(f"{error}; they end themselves {by_lease(ends)}" if ends else str(error))
    except Exception as error:  # noqa: BLE001  the edge: a defect in one provider must not keep others' machines alive
        return Removal(defect(error))


def _print_verdicts(
    pools: Sequence[FoundPool], verdicts: Sequence[Verdict], done: Sequence[Removal], *, apply: bool
) -> None:
    if not pools:
        print("No pools.")
        return
    remarks = []
    for each, how in zip(verdicts, done, strict=True):
        became = ("removed" if apply else "to remove") if each.remove else "kept"
        note = f"; {how.note}" if how.note else ""
        remarks.append(f"not removed: {how.failure}" if how.failure else f"{became}: {each.why}{note}")
    console_for_tables().print(pool_table(pools, "what becomes of it", remarks))
    if any(how.failure for how in done):
        print("What was not removed may go on to cost: mend the cause, and run `outrider gc --apply` again.")
    elif not apply and any(each.remove for each in verdicts):
        print("Nothing was touched: `outrider gc --apply` removes it.")
