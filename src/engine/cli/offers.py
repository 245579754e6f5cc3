"""`outrider offers`: shows which machines a spec would get, and their prices, without starting any."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ...lazy_dataclass import dataclass
from .common import DONE, WRONG, AsJson, Flag, defect
from .run import NO_OPTIONS, RunOptions, table_of

if TYPE_CHECKING:
    from rich.console import Console

    from ...providers.base import LaunchRequest, MachineOffer
    from ..api.settings import Settings, Spec

SHOWN = 20  # at most so many offers are shown for each spec; --json shows all
SHOWN_OF_EACH = 5  # at most so many offers are shown for each provider if several providers are compared
ANSWER_S = 30.0  # seconds to wait for a provider's offers; clouds send their catalogue and prices within a few seconds
COLUMNS = ("try", "type", "where", "market", "USD/h", "vCPUs", "GB", "GPUs", "stock", "arch")
# on a terminal that is too narrow, these columns are left out, in this order
FIRST_TO_GO = ("arch", "stock", "GB", "vCPUs", "try", "market")
RIGHT = frozenset({"try", "USD/h", "vCPUs", "GB"})


@dataclass(frozen=True, slots=True)
class SpecOffers:
    """The offers of machines for one spec, in the order in which a pool tries them. ``why_not``: why there are no
    offers.
    """

    provider: str
    offers: Sequence[MachineOffer] = ()
    why_not: str = ""

    @property
    def refusal(self) -> str:
        return f"{self.provider}: {self.why_not}"

    @property
    def hourly_usd(self) -> float:
        """The price by which pools compare specs: the lowest price per hour among the machines that are tried first."""
        first = [each.hourly_usd for each in self.offers if each.attempt == 1 and each.hourly_usd is not None]
        return min(first, default=float("inf"))


def offers(
    *,
    options: RunOptions = NO_OPTIONS,
    spot: Annotated[bool, Flag] = False,
    region: str | None = None,
    vcpus: int | None = None,
    max_price: float | None = None,
    as_json: AsJson = False,
) -> int:
    """Show which machines a pool would get, and their prices, without starting any.

    Takes the options of `outrider run`, and uses outrider.toml as `outrider run` does. If neither names a provider, all
    clouds are asked at once: one table shows their offers, the cheapest first, and each cloud without an offer is named
    with the reason and the next step. If a provider is named, its offers are in the order in which a pool would request
    them: first all offers with 1 in the column "try" together, then those with 2 if that gave too few machines, and so
    on. A price includes one machine and its disk. Whether a machine is free is known only at the launch, unless the
    cloud publishes its stock.

    Exits with 2 if no machine fits, and shows which machines come close.

    Example: `outrider offers --accelerator H100 --nodes 2 --spot`

    Parameters
    ----------
    spot:
        Only spot machines.
    region:
        Only machines in this region, by the cloud's name for it.
    vcpus:
        The least number of vCPUs of a machine.
    max_price:
        The highest price of a machine, in USD per hour.
    as_json:
        Print JSON, for programs.
    """
    import anyio

    from ..api.errors import SpecError

    wanted = {"allocation": "spot" if spot else None, "vcpus": vcpus, "max_hourly_cost": max_price}
    settings, results = settings_of(options, {key: value for key, value in wanted.items() if value is not None}, region)
    if settings is not None:
        results += [_within(each, region) for each in anyio.run(offers_of, settings)]
    refused = [each for each in results if each.why_not]
    if len(results) == len(refused) == 1:
        raise SpecError(results[0].why_not)
    if as_json or len(refused) == len(results):
        for each in refused:
            print(each.refusal, file=sys.stderr)
    if settings is None or len(refused) == len(results):
        return WRONG
    if as_json:
        print(json.dumps([_row(each, offer) for each in results for offer in each.offers], indent=2))
    else:
        _show(results, settings.nodes.desired, compared=_are_compared(settings))
    return DONE


def settings_of(
    options: RunOptions, wanted: Mapping[str, Any], region: str | None = None
) -> tuple[Settings | None, list[SpecOffers]]:
    """Return the settings of the pool that `outrider run` would open here, and a refusal for each cloud without the
    region.

    If neither the options nor the file name a provider, the pool has a spec for each cloud. The settings are None if no
    cloud has the region.

    Args:
        options: The options of `outrider run`.
        wanted: Other options of the pool, such as vcpus.
        region: The only region to use; None: any. Providers without regions ignore it.

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

    arguments = asdict(options)
    del arguments["command"], arguments["detach"]
    name, here = arguments.pop("pool"), Path.cwd()
    file = files.find(here)
    if file is None and name is not None:
        refuse(
            f"pool {name!r}: there is no {files.OWN}, and no {files.SHARED} with [tool.outrider], in {here} or above."
        )
    table, where = {}, "the command line"
    if file is not None and (name is not None or files.DEFAULT in file.pools):
        name = files.DEFAULT if name is None else name
        table, where = dict(file.pool(name)), file.where(name)
    whole = merged(table, at(table_of(arguments), here), wanted)
    refused: list[SpecOffers] = []
    if whole.get("provider") is None and not whole.get("specs"):
        machine = {key: whole.pop(key) for key in MachineOptions.__annotations__ if key in whole}
        providers, refused = _clouds_with(clouds(), region)
        if not providers:
            return None, refused
        whole["specs"] = [{**machine, "provider": each} for each in providers]
    elif region is not None:
        if "specs" in whole:
            refuse("--region: this pool has specs, each with a provider and a region of its own.")
        whole["provider"] = _in_region(whole["provider"], region)
    options_are_in_file(frozenset(table) - frozenset(table_of(arguments)))
    specs, chosen = pool_options({key: value for key, value in whole.items() if key not in RUN_KEYS}, where)
    with telling(where):
        return checked(specs, {**DEFAULTS, **chosen}), refused


def _in_region(provider: object, region: str) -> dict[str, Any]:
    """Return a provider's configuration table with the region set. If the provider has no such option, nothing is
    added.
    """
    from inspect import signature

    from ...providers.registry import PROVIDERS, provider_class

    table: dict[str, Any] = {**provider} if isinstance(provider, Mapping) else {"name": provider}
    name = table.get("name")
    if isinstance(name, str) and name in PROVIDERS:
        taken = signature(provider_class(name)).parameters
        option = next((each for each in ("region", "regions", "data_centers") if each in taken), "")
        if option:
            table[option] = region if option == "region" else [region]
    return table


def _clouds_with(names: Sequence[str], region: str | None) -> tuple[list[Any], list[SpecOffers]]:
    """Return the configuration tables of the clouds that may have the region, and a refusal for each of the other
    clouds.
    """
    from ...providers.registry import provider_class
    from ..api.language import worded

    if region is None:
        return [*names], []
    tables, refused = [], []
    for name in names:
        table = _in_region(name, region)
        try:
            provider_class(name)(**{key: value for key, value in table.items() if key != "name"})
        except ValueError as error:
            refused.append(SpecOffers(name, why_not=worded(str(error))))
        else:
            tables.append(table)
    return tables, refused


def _within(result: SpecOffers, region: str | None) -> SpecOffers:
    """Return only the offers in a region: a provider without a region option returns offers in all regions."""
    here = [each for each in result.offers if region is None or region in (each.region, each.place)]
    if here or result.why_not or region is None or not any(each.region or each.place for each in result.offers):
        return result if not here else SpecOffers(result.provider, here)
    others = ", ".join(sorted({each.region or each.place for each in result.offers}))
    return SpecOffers(result.provider, why_not=f"it has such machines in {others}, and none in {region}")


async def offers_of(settings: Settings) -> list[SpecOffers]:
    """Request the offers for all specs from their providers at the same time.

    Return the offers in the order in which the pool tries the specs.
    """
    import anyio

    from ..client.opening import launch_request

    request = launch_request(settings, "")
    results: dict[int, SpecOffers] = {}

    async def ask(place: int, spec: Spec) -> None:
        results[place] = await _offers(spec, spec.applied_to(request))

    async with anyio.create_task_group() as tasks:
        for place, spec in enumerate(settings.specs):
            tasks.start_soon(ask, place, spec)
    in_order = [results[place] for place in sorted(results)]
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
        reason = f"{provider.name} has not answered within {ANSWER_S:g} s: try again, or name others by --provider"
    except ProviderError as error:
        reason = ". ".join(each for each in (plain(str(error)).rstrip("."), error.advice) if each)
    except Exception as error:  # noqa: BLE001  the edge: a defect in one provider must not hide the others' offers
        reason = defect(error)
    return SpecOffers(provider.name, why_not=worded(reason))


def _row(spec: SpecOffers, offer: MachineOffer) -> dict[str, Any]:
    return {"provider": spec.provider, **asdict(offer)}


def _show(results: Sequence[SpecOffers], nodes: int, *, compared: bool) -> None:
    from .pool_table import console_for_tables

    console = console_for_tables()
    if compared:
        _show_compared(console, results)
    for spec in results:
        if spec.why_not:
            console.print(spec.refusal, markup=False, highlight=False, soft_wrap=True)
        elif not compared:
            _show_table(console, [cells(spec.provider, offer) for offer in spec.offers[:SHOWN]])
            _show_rest(console, len(spec.offers) - SHOWN)
            _show_cost(console, spec, nodes, which=" of the first")
    if compared:
        first = next(each for each in results if not each.why_not)
        _show_cost(console, first, nodes, which=f" of {first.provider}, which is asked first,")


def _show_compared(console: Console, results: Sequence[SpecOffers]) -> None:
    rows = [(each.provider, offer) for each in results for offer in cheapest_of(each.offers)[:SHOWN_OF_EACH]]
    rows.sort(key=lambda row: _price(row[1]))
    _show_table(console, [cells(provider, offer)[1:] for provider, offer in rows], COLUMNS[1:])
    _show_rest(console, sum(len(each.offers) for each in results) - len(rows))


def _show_rest(console: Console, count: int) -> None:
    if count > 0:
        console.print(f"and {count} more, which --json has", style="dim", highlight=False)


def _show_cost(console: Console, spec: SpecOffers, nodes: int, *, which: str) -> None:
    from ..api.quantities import count

    if 0 < spec.hourly_usd < float("inf"):
        whole = f"{count(nodes, 'node')}{which} would cost {nodes * spec.hourly_usd:.2f} USD per hour"
        console.print(whole, style="dim", highlight=False)


def cheapest_of(offers: Sequence[MachineOffer]) -> list[MachineOffer]:
    """Return the cheapest offer of each machine type and market in each region, the cheapest first."""
    cheapest: dict[tuple[str, ...], MachineOffer] = {}
    for offer in sorted(offers, key=_price):
        cheapest.setdefault((offer.kind, offer.region, offer.market), offer)
    return list(cheapest.values())


def _price(offer: MachineOffer) -> float:
    return float("inf") if offer.hourly_usd is None else offer.hourly_usd


def _show_table(console: Console, rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> None:
    """Print a table. If the terminal is too narrow, leave out columns instead of cutting them."""
    from rich.table import Table
    from rich.text import Text

    kept = fitting(rows, columns, console.width)
    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in kept:
        shown.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell) for column, cell in zip(columns, row, strict=True) if column in kept))
    console.print(shown)
    if left_out := [each for each in columns if each not in kept]:
        console.print(f"not shown: {', '.join(left_out)} (the terminal is narrow; --json has all)", style="dim")


def fitting(rows: Sequence[Sequence[str]], columns: Sequence[str], width: int) -> list[str]:
    """Return the columns of a table that fit into the width. Columns in `FIRST_TO_GO` are left out first."""
    needs = {column: 2 + max(len(column), *(len(row[place]) for row in rows)) for place, column in enumerate(columns)}
    for column in FIRST_TO_GO:
        if sum(needs.values()) > width:
            needs.pop(column, None)
    return [*needs]


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
