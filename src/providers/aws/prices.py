"""Prices of machines on demand: a bundled table, and AWS's own price list where it answers. See decision 20.

The table (``prices.json``) has the prices in us-east-1, and for other regions a family's price relative to that, which
all sizes of a family share. A general-purpose family has one size; the prices of others are proportional to it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import anyio

from ..cloud import price_table
from ..cloud.price_table import Price
from ..private import cache_root

PATIENCE_S: Final = 5.0
TYPES_IN_A_QUESTION: Final = 40  # a filter's value has at most 1024 characters
PAGES_AT_MOST: Final = 10
FRACTIONS_OF_LARGE: Final = {"nano": 1 / 16, "micro": 1 / 8, "small": 1 / 4, "medium": 1 / 2, "large": 1.0}


class Api(Protocol):
    """The part of `api.Api` that this module needs."""

    @property
    def region(self) -> str: ...

    @property
    def endpoint_url(self) -> str | None: ...

    async def call(
        self, operation: str, /, *, service: Literal["ec2", "pricing"] = "ec2", **parameters: Any
    ) -> dict[str, Any]: ...


async def on_demand(api: Api, types: Collection[str], *, now: float, kept: Path | None = None) -> dict[str, float]:
    """USD per hour of these types in the API's region. Types without a known price are left out.

    Prices older than a month are asked for, and stored in the file ``kept``; those of a user's own endpoint are not
    stored. If the price list does not answer in 5 s, or this account may not read it, old prices are used; nothing is
    raised. ``now``: seconds since 1970.
    """
    known = {name: price for name in types if (price := bundled(name, api.region)) is not None}
    file = kept if api.endpoint_url is None else None
    return await price_table.current(types, known, partial(_ask, api, now=now), now=now, kept=file)


def cache_file(region: str) -> Path:
    """The file that keeps this region's prices between processes."""
    return cache_root() / "aws" / f"prices-{region}.json"


# --- the table --------------------------------------------------------------------------------------------------------


def bundled(type_: str, region: str) -> Price | None:
    """The price in the bundled table; None where it has none."""
    table = _table()
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
    """Regions with types that have the accelerator, according to the table; the lowest prices first."""
    lowest: dict[str, float] = {}
    for entry in _table()["families"].values():
        if entry.get("accelerator", "").lower() == accelerator.lower():
            for region, factor in entry["regions"].items():
                lowest[region] = min(factor, lowest.get(region, math.inf))
    return sorted(lowest, key=lambda region: (lowest[region], region))


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return table


def _times_large(size: str) -> float | None:
    found = re.fullmatch(r"(\d*)xlarge", size)
    return 2.0 * int(found[1] or 1) if found else FRACTIONS_OF_LARGE.get(size)


# --- the price list ---------------------------------------------------------------------------------------------------


def question(types: Collection[str], region: str) -> dict[str, Any]:
    """The parameters of GetProducts: Linux on shared hardware, without licences, per hour."""
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
    """Parse GetProducts' answer, whose items are JSON texts: USD per hour by type."""
    found: dict[str, float] = {}
    for text in products:
        product = json.loads(text)
        attributes = product["product"]["attributes"]
        if attributes.get("regionCode") == region and attributes.get("tenancy") == "Shared":
            for usd in _hourly(product):
                name = attributes["instanceType"]
                found[name] = max(usd, found.get(name, 0.0))
    return found


def _hourly(product: Mapping[str, Any]) -> Iterator[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == "Hrs" and usd > 0:
                yield usd


async def _ask(api: Api, types: Sequence[str], *, now: float) -> dict[str, Price]:
    found: dict[str, Price] = {}
    with anyio.move_on_after(PATIENCE_S), suppress(Exception):  # refused, or in an unknown form: use the table
        for start in range(0, len(types), TYPES_IN_A_QUESTION):
            asked = question(types[start : start + TYPES_IN_A_QUESTION], api.region)
            for _ in range(PAGES_AT_MOST):
                answer = await api.call("get_products", service="pricing", **asked)
                prices = understand(answer.get("PriceList", ()), api.region)
                found |= {name: Price(usd, now) for name, usd in prices.items()}
                if not answer.get("NextToken"):
                    break
                asked["NextToken"] = answer["NextToken"]
    return found
