"""On-demand prices of machines: a bundled table, and AWS's own price list if it responds. See decision 20.

The table (``prices.json``) has the prices in us-east-1. For other regions it has a family's price relative to
us-east-1, which all sizes of the family share. The table has one size of each general-purpose family; the prices of
other sizes are proportional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..cloud import price_table
from ..cloud.pages import every_page
from ..cloud.price_table import Price, bundled_table, cheapest_first
from ..private import cache_root
from .api import Api, page_of

PATIENCE_S: Final = 5.0
TYPES_IN_A_QUESTION: Final = 40  # types per query; a filter's value has at most 1024 characters
FRACTIONS_OF_LARGE: Final = {"nano": 1 / 16, "micro": 1 / 8, "small": 1 / 4, "medium": 1 / 2, "large": 1.0}


async def on_demand(api: Api, types: Collection[str], *, now: float, kept: Path | None = None) -> dict[str, float]:
    """Return USD per hour of these types in the API's region. Types without a known price are left out.

    Prices older than a month are requested again, and stored in the file ``kept``; prices from the user's own endpoint
    are not stored. If the price list does not respond in 5 s, or this account may not read it, old prices are used;
    nothing is raised. ``now``: seconds since 1970.
    """
    known = {name: price for name in types if (price := bundled(name, api.region)) is not None}
    return await price_table.current(
        types,
        known,
        partial(_ask, api),
        now=now,
        kept=kept if api.endpoint_url is None else None,
        at_a_time=TYPES_IN_A_QUESTION,
        patience_s=PATIENCE_S,
    )


def cache_file(region: str) -> Path:
    """Return the file that caches this region's prices between processes."""
    return cache_root() / "aws" / f"prices-{region}.json"


# --- the table --------------------------------------------------------------------------------------------------------


def bundled(type_: str, region: str) -> Price | None:
    """Return the price in the bundled table; None: not in the table."""
    table = bundled_table(__file__)
    family, _, size = type_.partition(".")
    entry = table["families"].get(family)
    if entry is None or region not in entry["regions"]:
        return None
    usd = entry["sizes"].get(size)
    if usd is None and "accelerator" not in entry and (times := _times_large(size)) is not None:
        usd = entry["sizes"]["large"] * times
    if usd is None:
        return None
    return Price(usd * entry["regions"][region], datetime.fromisoformat(table["as_of"]).replace(tzinfo=UTC).timestamp())


def regions_with(accelerator: str) -> list[str]:
    """Return the regions with types that have the accelerator, according to the table; the lowest prices first."""
    families = bundled_table(__file__)["families"].values()
    having = [each for each in families if each.get("accelerator", "").lower() == accelerator.lower()]
    return cheapest_first(price for each in having for price in each["regions"].items())


def _times_large(size: str) -> float | None:
    match = re.fullmatch(r"(\d*)xlarge", size)
    return 2.0 * int(match[1] or 1) if match else FRACTIONS_OF_LARGE.get(size)


# --- the price list ---------------------------------------------------------------------------------------------------


def question(types: Collection[str], region: str) -> dict[str, Any]:
    """Return the parameters of GetProducts: Linux on shared hardware, without licences, per hour."""
    wanted = {
        "regionCode": region,
        "operatingSystem": "Linux",
        "operation": "RunInstances",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    filters.append({"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(types)})
    return {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": filters}


def understand(products: Iterable[str], region: str) -> dict[str, float]:
    """Parse GetProducts' answer, whose items are JSON texts, into USD per hour by type."""
    prices: dict[str, float] = {}
    for text in products:
        product = json.loads(text)
        attributes = product["product"]["attributes"]
        if attributes.get("regionCode") == region and attributes.get("tenancy") == "Shared":
            for usd in _hourly(product):
                name = attributes["instanceType"]
                prices[name] = max(usd, prices.get(name, 0.0))
    return prices


def _hourly(product: Mapping[str, Any]) -> Iterator[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == "Hrs" and usd > 0:
                yield usd


async def _ask(api: Api, types: Sequence[str]) -> dict[str, float]:
    query = question(types, api.region)

    async def page(token: str) -> tuple[Sequence[str], str]:
        answer = await api.call("get_products", service="pricing", **query, **page_of(token))
        return answer.get("PriceList", ()), answer.get("NextToken", "")

    return understand(await every_page(page), api.region)
