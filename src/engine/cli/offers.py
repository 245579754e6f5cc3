"""`outrider offers`: show what a spec would get and cost, without starting anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ...lazy_dataclass import dataclass
from .exit_codes import DONE, WRONG
from .failures import defect
from .flags import AsJson, Flag
from .run import NO_OPTIONS, RunOptions, table_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ...providers.base import LaunchRequest, MachineOffer
    from ..api.settings import Settings, Spec

SHOWN = 20  # of the offers of a spec; --json has all
SHOWN_OF_EACH = 5  # where several providers are compared
ANSWER_S = 30.0  # for a provider's offers: a cloud's catalogue and prices come within some seconds
COLUMNS = ("try", "type", "where", "market", "USD/h", "vCPUs", "GB", "GPUs", "stock", "")
RIGHT = frozenset({"try", "USD/h", "vCPUs", "GB"})


@dataclass(frozen=True, slots=True)
class SpecOffers:
    """The machines that one spec would get, in the order in which they are tried. ``why_not``: why there are none."""

    provider: str
    offers: Sequence[MachineOffer] = ()
    why_not: str = ""

    @property
    def refusal(self) -> str:
        return f"{self.provider}: {self.why_not}"

    @property
    def hourly_usd(self) -> float:
        """The price by which specs are compared, as a pool compares them: the cheapest of those tried first."""
        first = [each.hourly_usd for each in self.offers if each.attempt == 1 and each.hourly_usd is not None]
        return min(first, default=float("inf"))


def offers(*, options: RunOptions = NO_OPTIONS, spot: Annotated[bool, Flag] = False, as_json: AsJson = False) -> int:
    """Show what machines a pool would get, and what they cost, without starting any.

    Takes the options of `outrider run`, and outrider.toml as that does. Where neither says a provider, every cloud is
    asked, at once, and their offers stand in one table, the cheapest first; a cloud that gives none is named with the
    reason and the next step. Of one provider, offers stand in the order in which they are tried; those with the same
    number are asked for together, and the next number when they give too few. Prices are of one machine with its disk.
    Unless the cloud tells its stock, whether it has such a machine to give shows when it is asked for.

    Exits with 2 where nothing fits, and says what comes close.

    Example: `outrider offers --accelerator H100 --nodes 2 --spot`

    Parameters
    ----------
    spot:
        Spot machines alone.
    as_json:
        Print JSON, for programs.
    """
    import anyio

    from ..api.errors import SpecError

    settings = settings_of(options, spot=spot)
    found = anyio.run(offers_of, settings)
    refused = [each for each in found if each.why_not]
    if len(found) == len(refused) == 1:
        raise SpecError(found[0].why_not)
    if as_json or len(refused) == len(found):
        for each in refused:
            print(each.refusal, file=sys.stderr)
    if len(refused) == len(found):
        return WRONG
    if as_json:
        print(json.dumps([_row(each, offer) for each in found for offer in each.offers], indent=2))
    else:
        _show(found, settings.nodes.desired, compared=_are_compared(settings))
    return DONE


def settings_of(options: RunOptions, *, spot: bool = False) -> Settings:
    """Return the settings of the pool that `outrider run` would open with these options here.

    Where they say no provider: of a pool with a spec for each cloud.

    Raises:
        SpecError: an option or the file is not valid.
    """
    from ...providers.registry import clouds
    from ..api.checks import refuse
    from ..api.language import options_are_in_file
    from ..api.settings import MachineOptions
    from ..config import files
    from ..config.tables import RUN_KEYS, at, merged, pool_options, telling
    from ..pool_options import DEFAULTS, checked

    given = asdict(options)
    del given["command"], given["detach"]
    name, here = given.pop("pool"), Path.cwd()
    file = files.find(here)
    if file is None and name is not None:
        refuse(
            f"pool {name!r}: there is no {files.OWN}, and no {files.SHARED} with [tool.outrider], in {here} or above."
        )
    table, where = {}, "the command line"
    if file is not None and (name is not None or files.DEFAULT in file.pools):
        table, where = dict(file.pool(name or files.DEFAULT)), file.where(name or files.DEFAULT)
    whole = merged(table, at(table_of(given), here), {"allocation": "spot"} if spot else {})
    if whole.get("provider") is None and not whole.get("specs"):
        machine = {key: whole.pop(key) for key in MachineOptions.__annotations__ if key in whole}
        whole["specs"] = [{**machine, "provider": name} for name in clouds()]
    options_are_in_file(frozenset(table) - frozenset(table_of(given)))
    specs, chosen = pool_options({key: value for key, value in whole.items() if key not in RUN_KEYS}, where)
    with telling(where):
        return checked(specs, {**DEFAULTS, **chosen})


async def offers_of(settings: Settings) -> list[SpecOffers]:
    """Ask all providers at once what each spec would get; return it in the order in which the pool asks them."""
    import anyio

    from ..client.from_settings import launch_request

    request = launch_request(settings, "")
    found: dict[int, SpecOffers] = {}

    async def ask(place: int, spec: Spec) -> None:
        found[place] = await _offers(spec, spec.applied_to(request))

    async with anyio.create_task_group() as tasks:
        for place, spec in enumerate(settings.specs):
            tasks.start_soon(ask, place, spec)
    in_order = [found[place] for place in sorted(found)]
    return sorted(in_order, key=lambda each: each.hourly_usd) if _are_compared(settings) else in_order


def _are_compared(settings: Settings) -> bool:
    from ..client.provider_fallback import ProviderFallback

    return isinstance(settings.provider, ProviderFallback) and settings.provider.selection == "cheapest"


async def _offers(spec: Spec, request: LaunchRequest) -> SpecOffers:
    import anyio

    from ...providers.base import Offering
    from ...providers.errors import ProviderError
    from ..api.language import worded
    from ..api.printable import plain

    provider = spec.provider
    if not isinstance(provider, Offering):
        return SpecOffers(provider.name, why_not=f"{provider.name} does not say what it has before it is asked for it")
    try:
        with anyio.move_on_after(ANSWER_S):
            return SpecOffers(provider.name, await provider.offers(request))
        told = f"{provider.name} has not answered within {ANSWER_S:g} s: try again, or name others by --provider"
    except ProviderError as error:
        told = ". ".join(each for each in (plain(str(error)).rstrip("."), error.advice) if each)
    except Exception as error:  # noqa: BLE001  the edge: a defect in one provider must not hide the others' offers
        told = defect(error)
    return SpecOffers(provider.name, why_not=worded(told))


def _row(spec: SpecOffers, offer: MachineOffer) -> dict[str, Any]:
    return {"provider": spec.provider, **asdict(offer)}


def _show(found: Sequence[SpecOffers], nodes: int, *, compared: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if compared:
        _show_compared(console, found)
    for spec in found:
        if spec.why_not:
            console.print(spec.refusal, markup=False)
        elif not compared:
            console.print(_table([cells(spec.provider, offer) for offer in spec.offers[:SHOWN]]))
            _show_rest(console, len(spec.offers) - SHOWN)
            _show_cost(console, spec, nodes, which=" of the first")
    if compared:
        _show_cost(console, found[0], nodes, which=f" of {found[0].provider}, which is asked first,")


def _show_compared(console: Console, found: Sequence[SpecOffers]) -> None:
    rows = [(each.provider, offer) for each in found for offer in cheapest_of(each.offers)[:SHOWN_OF_EACH]]
    rows.sort(key=lambda row: _price(row[1]))
    console.print(_table([cells(provider, offer)[1:] for provider, offer in rows], COLUMNS[1:]))
    _show_rest(console, sum(len(each.offers) for each in found) - len(rows))


def _show_rest(console: Console, count: int) -> None:
    if count > 0:
        console.print(f"and {count} more, which --json has", style="dim")


def _show_cost(console: Console, spec: SpecOffers, nodes: int, *, which: str) -> None:
    from ..observe.descriptions import count

    if 0 < spec.hourly_usd < float("inf"):
        whole = f"{count(nodes, 'node')}{which} would cost {nodes * spec.hourly_usd:.2f} USD per hour"
        console.print(whole, style="dim")


def cheapest_of(offers: Sequence[MachineOffer]) -> list[MachineOffer]:
    """The cheapest offer of each type and market in each region, the cheapest first."""
    found: dict[tuple[str, ...], MachineOffer] = {}
    for offer in sorted(offers, key=_price):
        found.setdefault((offer.kind, offer.region, offer.market), offer)
    return list(found.values())


def _price(offer: MachineOffer) -> float:
    return float("inf") if offer.hourly_usd is None else offer.hourly_usd


def _table(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in columns:
        shown.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown


def cells(provider: str, offer: MachineOffer) -> tuple[str, ...]:
    gpus = offer.accelerators
    return (
        str(offer.attempt),
        offer.kind,
        f"{provider} {offer.place or offer.region}".strip(),
        offer.market,
        "?" if offer.hourly_usd is None else f"{offer.hourly_usd:.4f}" if offer.hourly_usd else "0",
        "?" if offer.vcpus is None else str(offer.vcpus),
        "?" if offer.memory_gb is None else f"{offer.memory_gb:g}",
        "?" if gpus is None else f"{gpus} {offer.accelerator}" if gpus else "none",
        offer.stock or "?",
        offer.architecture,
    )
