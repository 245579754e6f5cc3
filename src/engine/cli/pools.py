"""`outrider ps` and `outrider gc`: show pools of cloud machines, and end those that dead clients have left."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import anyio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...providers.errors import NotGone, ProviderError
from ...providers.journal import Journal, PoolOwned
from ...providers.pool_lock import Place
from ..api.printable import one_line, plain
from . import clouds
from .orphans import FoundPool, PlaceAnswer, Verdict, pools_found, verdict

NOTHING, SOMETHING, UNKNOWN = 0, 1, 2  # exit codes: what is left
OWNERS = {
    "alive": "owned by {owner}",
    "dead": "owner is dead ({owner}): see `outrider gc`",
    "elsewhere": "owner is elsewhere: {owner}",
    "unknown": "of {owner}, not in the journal here",
}
Flag = Parameter(negative="")
AsJson = Annotated[bool, Parameter(name="--json", negative="")]


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
        The profile in ~/.aws to use for them.
    endpoint_url:
        The endpoint of another cloud with EC2's interface, to use for them.
    """

    region: Annotated[list[str] | None, Flag] = None
    all_regions: Annotated[bool, Flag] = False
    profile: Annotated[str | None, Parameter(env_var="AWS_PROFILE")] = None
    endpoint_url: Annotated[str | None, Parameter(env_var="AWS_ENDPOINT_URL")] = None

    @property
    def access(self) -> dict[str, str]:
        given = {"profile": self.profile, "endpoint_url": self.endpoint_url}
        return {key: value for key, value in given.items() if value}


def ps(
    *,
    where: SearchOptions = SearchOptions(),
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
    pools, unanswered = anyio.run(_find_pools, _journal(), where)
    if as_json:
        _print_json(pools, [{} for _ in pools])
    elif pools:
        remarks = [OWNERS[pool.standing].format(owner=pool.owner or "unknown") for pool in pools]
        Console().print(_table(pools, "owner", remarks))
    else:
        print("No pools of cloud machines.")
    if not as_json:
        _print_unanswered(unanswered)
    return UNKNOWN if unanswered else NOTHING


def gc(
    *,
    where: SearchOptions = SearchOptions(),
    apply: Annotated[bool, Flag] = False,
    foreign: Annotated[bool, Flag] = False,
    as_json: AsJson = False,
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
    journal = _journal()
    pools, unanswered = anyio.run(_find_pools, journal, where)
    verdicts = [verdict(pool, foreign=foreign) for pool in pools]
    failures = anyio.run(_remove, journal, pools, verdicts) if apply else [""] * len(pools)
    removed = [apply and each.remove and not failure for each, failure in zip(verdicts, failures, strict=True)]
    if as_json:
        own: list[dict[str, object]] = [
            {"remove": each.remove, "why": each.why, "removed": gone, "failure": failure}
            for each, gone, failure in zip(verdicts, removed, failures, strict=True)
        ]
        _print_json(pools, own)
    else:
        _print_verdicts(pools, verdicts, failures, apply=apply)
        _print_unanswered(unanswered)
    for pool, each, gone in zip(pools, verdicts, removed, strict=True):
        if not gone and (each.remove or (pool.ours and not pool.error)):
            return SOMETHING
    return UNKNOWN if unanswered else NOTHING


# --- finding and removing ---------------------------------------------------------------------------------------------


def _journal() -> Journal:
    """Open this user's journal; exit with 2 where that fails."""
    try:
        return Journal.open()
    except ProviderError as error:
        print(f"outrider: {plain(str(error))}", file=sys.stderr)
        raise SystemExit(UNKNOWN) from None


async def _find_pools(journal: Journal, where: SearchOptions) -> tuple[list[FoundPool], list[PlaceAnswer]]:
    places: list[Place] = [{"region": region, **where.access} for region in where.region or ()]
    answers = await clouds.ask(journal.records(), places, everywhere=where.access if where.all_regions else None)
    return pools_found(journal.records(), answers), [asked for asked in answers if asked.error]


async def _remove(journal: Journal, pools: Sequence[FoundPool], verdicts: Sequence[Verdict]) -> list[str]:
    """Remove the pools one after another. For each: why it is not gone, or ""."""
    return [await _removed(journal, pool) if each.remove else "" for pool, each in zip(pools, verdicts, strict=True)]


async def _removed(journal: Journal, pool: FoundPool) -> str:
    from ..client.adoption import lease_kept
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


# --- showing ----------------------------------------------------------------------------------------------------------


def _print_verdicts(
    pools: Sequence[FoundPool], verdicts: Sequence[Verdict], failures: Sequence[str], *, apply: bool
) -> None:
    if not pools:
        print("No pools.")
        return
    remarks = []
    for each, failure in zip(verdicts, failures, strict=True):
        done = "removed" if apply else "to remove"
        remarks.append(f"not removed: {failure}" if failure else f"{done if each.remove else 'kept'}: {each.why}")
    Console().print(_table(pools, "what becomes of it", remarks))
    if any(failures):
        print("What was not removed may go on to cost: mend the cause, and run `outrider gc --apply` again.")
    elif not apply and any(each.remove for each in verdicts):
        print("Nothing was touched: `outrider gc --apply` removes it.")


def _print_unanswered(unanswered: Sequence[PlaceAnswer]) -> None:
    for asked in unanswered:
        said = f"{place(asked.place)} could not be asked: {plain(asked.error)}"
        Console().print(said, markup=False, style="red")


def _print_json(pools: Sequence[FoundPool], more: Sequence[dict[str, object]]) -> None:
    """Print a JSON list of all that is known of each pool, joined with the command's own fields in ``more``."""
    rows = [
        {**asdict(pool), "place": dict(pool.place), "hourly_usd": pool.hourly_usd, **own}
        for pool, own in zip(pools, more, strict=True)
    ]
    print(json.dumps(rows, indent=2))


def _table(pools: Sequence[FoundPool], last: str, remarks: Sequence[str]) -> Table:
    """Return a table with one row per pool and place. ``remarks`` are the cells of the ``last`` column."""
    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("pool", "where", "machines", "age", "USD/h"):
        shown.add_column(column, justify="right" if column in ("age", "USD/h") else "left", no_wrap=True)
    shown.add_column(last)
    for pool, remark in zip(pools, remarks, strict=True):
        cells = (pool.pool, place(pool.place), machines(pool), age(pool, time.time()), price(pool), remark)
        shown.add_row(*(Text(one_line(cell)) for cell in cells))
    return shown


def place(where: Place) -> str:
    parts = (where.get("region", ""), where.get("profile", ""), where.get("endpoint_url", ""))
    return " ".join(part for part in parts if part) or "nowhere"


def machines(pool: FoundPool) -> str:
    if pool.error:
        return "?"
    kinds = Counter(f"{machine.kind} {machine.market}" for machine in pool.machines)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"


def age(pool: FoundPool, now: float) -> str:
    if not pool.machines:
        return ""
    minutes = max(0, int(now - min(machine.launched_at for machine in pool.machines))) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def price(pool: FoundPool) -> str:
    if not pool.machines:
        return ""
    return "?" if pool.hourly_usd is None else f"{pool.hourly_usd:.2f}"
