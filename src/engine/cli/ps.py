"""`outrider ps`: shows running pools.

`pools_here` finds the pools that this computer knows without asking a cloud: from records, and from folders of local
pools.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Annotated, Any, Literal

import anyio
from rich.table import Table
from rich.text import Text

from ...lazy_dataclass import dataclass
from ...providers.local.state import LivingPool, living_pools
from ...providers.registry import ProviderName
from ...providers.shared.paths import state_root
from ...providers.shared.pool_lock import Owner, Place
from ..api.printable import one_line
from ..api.quantities import cents
from ..api.settings import is_named
from ..api.sink import Spending
from ..record.runs.names import runs_folder
from ..record.runs.reader import Run, read_json, runs_in
from .common import DONE, UNKNOWN, AsJson, Flag
from .pool_search import NO_OTHER_PLACES, FoundPool, SearchOptions, find_pools, open_journal
from .pool_table import console_for_tables, lasted, machines, place, price, print_unanswered

# a run whose owner cannot be checked counts as alive up to this many seconds after its record's last update
# (living owners update the record each minute)
SILENT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A run that has not ended, and whose owner (the program that opened the pool) is alive, or may be.

    ``pool``: the name that the program gave the pool.
    """

    run: str
    pool: str
    provider: str
    standing: Literal["alive", "elsewhere"]
    owner: str = ""
    pid: int | None = None
    place: Place = field(default_factory=dict)
    began: float | None = None
    written: float = 0.0
    nodes: int | None = None
    wanted_nodes: int | None = None
    spent_usd: float | None = None
    hourly_usd: float = 0.0

    def has(self, pool: str, owner: str, pid: int | None = None) -> bool:
        """Return whether this run is a run of the pool with this unique name, and has this owner or process id."""
        return is_named(pool, self.pool) and (owner == self.owner if pid is None else pid == self.pid)

    def cost(self, now: float) -> float | None:
        return None if self.spent_usd is None else Spending(self.spent_usd, self.hourly_usd, self.written).until(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPool:
    """A row of `outrider ps`. ``since``: unix time of the pool's start. None: unknown, for example without a record."""

    facts: FoundPool
    since: float | None = None
    nodes: int | None = None
    wanted_nodes: int | None = None
    spent_usd: float | None = None
    hourly_usd: float | None = None
    run: str = ""

    def as_json(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in ("since", "nodes", "wanted_nodes", "spent_usd", "hourly_usd", "run")
        }
        return {**asdict(self.facts), "place": dict(self.facts.place), **own}


def joined(
    surveyed: Sequence[FoundPool], runs: Sequence[RunSeen], local: Sequence[LivingPool], *, now: float, host: str
) -> list[ShownPool]:
    """Combine what clouds, records and folders report about pools. No I/O.

    Every pool in ``surveyed``, every run that has not ended and every local pool is in exactly one row.
    """
    left = list(runs)

    def of(pool: str, owner: str, pid: int | None = None) -> RunSeen | None:
        seen = next((each for each in left if each.has(pool, owner, pid)), None)
        if seen is not None:
            left.remove(seen)
        return seen

    rows = [_row(pool, of(pool.pool, pool.owner), now) for pool in surveyed]
    for here in local:
        seen = of(here.name, "", here.pid)
        owner = f"process {here.pid} on {host}" if seen is None else seen.owner
        row = _row(FoundPool(here.name, "local", {}, owner, "alive"), seen, now)
        rows.append(
            ShownPool(facts=row.facts, since=here.since, nodes=here.nodes, hourly_usd=0.0) if seen is None else row
        )
    rows += [
        _row(FoundPool(each.pool, each.provider, each.place, each.owner, each.standing), each, now) for each in left
    ]
    return sorted(rows, key=lambda row: (row.facts.pool, sorted(row.facts.place.items())))


def _row(pool: FoundPool, seen: RunSeen | None, now: float) -> ShownPool:
    if seen is None:
        since = min((machine.launched_at for machine in pool.machines), default=None)
        return ShownPool(facts=pool, since=since, hourly_usd=pool.hourly_usd)
    return ShownPool(
        facts=pool,
        since=seen.began,
        nodes=seen.nodes,
        wanted_nodes=seen.wanted_nodes,
        spent_usd=seen.cost(now),
        hourly_usd=pool.hourly_usd if pool.machines else seen.hourly_usd,
        run=seen.run,
    )


def pools_here(surveyed: Sequence[FoundPool]) -> list[ShownPool]:
    """Return ``surveyed`` (the pools found in clouds), and all other running pools that the state folder knows.

    Raises:
        OSError: the state folder cannot be read.
    """
    now = time.time()
    seen = [each for run in runs_in(runs_folder()) if (each := _seen(run, now)) is not None]
    return joined(surveyed, seen, living_pools(state_root()), now=now, host=socket.gethostname())


def _seen(run: Run, now: float) -> RunSeen | None:
    if run.ended:
        return None
    standing, status = run.owner, run.status
    if standing == "dead" or (standing != "alive" and now - status.get("written", 0.0) > SILENT_S):
        return None
    about = read_json(run.directory / "run.json")
    owner = about.get("owner")
    try:
        named = Owner(**owner) if isinstance(owner, dict) else None
    except TypeError:  # a record of another version of Outrider, with other fields
        named = None
    names = ("began", "nodes", "wanted_nodes", "spent_usd")
    return RunSeen(
        run=run.id,
        pool=str(status.get("pool") or run.name),
        provider=str(status.get("provider", "")),
        standing="alive" if standing == "alive" else "elsewhere",
        owner="" if named is None else str(named),
        pid=None if named is None else named.pid,
        place=_place(about.get("spec")),
        written=status.get("written", now),
        hourly_usd=status.get("hourly_usd", 0.0),
        **{name: status.get(name) for name in names},
    )


def _place(spec: Any) -> Place:
    """Return where a pool on the user's own hosts is: the names of the hosts. Other pools: empty."""
    try:
        hosts = [host["name"] for each in spec["specs"] for host in each["provider"].get("hosts", ())]
    except (TypeError, KeyError, AttributeError):
        return {}
    return {"hosts": ",".join(map(str, hosts))} if hosts else {}


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
