"""`outrider offers`: show what a spec would get and cost, without starting anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass
from .exit_codes import DONE
from .flags import AsJson
from .run import NO_OPTIONS, RunOptions, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from ...providers.base import LaunchRequest, MachineOffer
    from ..api.settings import Settings, Spec

SHOWN = 20  # of the offers of a spec; --json has all
COLUMNS = ("try", "type", "where", "market", "USD/h", "vCPUs", "GB", "GPUs", "")
RIGHT = frozenset({"try", "USD/h", "vCPUs", "GB"})


@dataclass(frozen=True, slots=True)
class SpecOffers:
    """The machines that one spec would get, in the order in which they are tried. ``why_not``: why there are none."""

    provider: str
    offers: Sequence[MachineOffer] = ()
    why_not: str = ""

    @property
    def hourly_usd(self) -> float:
        """The price by which specs are compared, as a pool compares them: the cheapest of those tried first."""
        first = [each.hourly_usd for each in self.offers if each.attempt == 1 and each.hourly_usd is not None]
        return min(first, default=float("inf"))


def offers(*, options: RunOptions = NO_OPTIONS, as_json: AsJson = False) -> int:
    """Show what machines a pool would get, and what they cost, without starting any.

    Takes the options of `outrider run`, and outrider.toml as that does. Offers stand in the order in which they are
    tried; those with the same number are asked for together, and the next number when they give too few. Prices are of
    one machine with its disk. Whether a cloud has such a machine to give shows when it is asked for.

    Exits with 2 where nothing fits, and says what comes close.

    Example: `outrider offers --provider aws --accelerator L4 --set provider.region=us-east-1`

    Parameters
    ----------
    as_json:
        Print JSON, for programs.
    """
    import anyio

    from ..api.errors import SpecError

    settings = settings_of(options)
    found = anyio.run(offers_of, settings)
    if all(each.why_not for each in found):
        raise SpecError("; ".join(each.why_not for each in found))
    if as_json:
        print(json.dumps([_row(each, offer) for each in found for offer in each.offers], indent=2))
    else:
        _show(found, settings.nodes.desired)
    return DONE


def settings_of(options: RunOptions) -> Settings:
    """Return the settings of the pool that `outrider run` would open with these options here.

    Raises:
        SpecError: an option or the file is not valid.
    """
    from ..api.checks import refuse
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
    whole = merged(table, at(table_of(given), here))
    specs, chosen = pool_options({key: value for key, value in whole.items() if key not in RUN_KEYS}, where)
    with telling(where):
        return checked(specs, {**DEFAULTS, **chosen})


async def offers_of(settings: Settings) -> list[SpecOffers]:
    """Return what each spec would get, in the order in which the pool asks them."""
    from ..client.from_settings import launch_request
    from ..client.provider_fallback import ProviderFallback

    request = launch_request(settings, "")
    found = [await _offers(spec, spec.applied_to(request)) for spec in settings.specs]
    by_price = isinstance(settings.provider, ProviderFallback) and settings.provider.selection == "cheapest"
    return sorted(found, key=lambda each: each.hourly_usd) if by_price else found


async def _offers(spec: Spec, request: LaunchRequest) -> SpecOffers:
    from ...providers.base import Offering
    from ...providers.errors import ProviderError
    from ..api.printable import plain

    provider = spec.provider
    if not isinstance(provider, Offering):
        return SpecOffers(provider.name, why_not=f"{provider.name} does not say what it has before it is asked for it")
    try:
        return SpecOffers(provider.name, await provider.offers(request))
    except ProviderError as error:
        told = " ".join(each for each in (plain(str(error)).rstrip("."), error.advice) if each)
        return SpecOffers(provider.name, why_not=told)


def _row(spec: SpecOffers, offer: MachineOffer) -> dict[str, Any]:
    return {"provider": spec.provider, **asdict(offer)}


def _show(found: Sequence[SpecOffers], nodes: int) -> None:
    from rich.console import Console

    from ..observe.descriptions import count

    console = Console(highlight=False)
    for spec in found:
        if spec.why_not:
            console.print(f"{spec.provider}: {spec.why_not}", markup=False)
            continue
        console.print(_table(spec))
        if len(spec.offers) > SHOWN:
            console.print(f"and {len(spec.offers) - SHOWN} more, which --json has", style="dim")
        if 0 < spec.hourly_usd < float("inf"):
            whole = f"{count(nodes, 'node')} of the first would cost {nodes * spec.hourly_usd:.2f} USD per hour"
            console.print(whole, style="dim")


def _table(spec: SpecOffers) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 1), header_style="dim")
    for column in COLUMNS:
        shown.add_column(column, justify="right" if column in RIGHT else "left", no_wrap=True)
    for offer in spec.offers[:SHOWN]:
        shown.add_row(*map(Text, cells(spec.provider, offer)))
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
        offer.architecture,
    )
