"""On-demand prices: the table, the price list's answers, and the file between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws.catalogue import bundled, cache_file, on_demand, question, regions_with, understand
from outrider.providers.cloud.caching import MONTH_S
from outrider.providers.errors import NotAuthorized

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000.0  # years after the table


def product(
    name: str, usd: str, *, region: str = "eu-central-1", tenancy: str = "Shared", unit: str = "Hrs", sku: str = "A"
) -> str:
    """One item as GetProducts writes it, less what nobody reads."""
    dimension = {"unit": unit, "description": f"${usd} per On Demand Linux {name}", "pricePerUnit": {"USD": usd}}
    return json.dumps({
        "product": {
            "productFamily": "Compute Instance",
            "sku": sku,
            "attributes": {"instanceType": name, "regionCode": region, "tenancy": tenancy, "operatingSystem": "Linux"},
        },
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {f"{sku}.JRTCKXETXF": {"priceDimensions": {f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension}}},
            "Reserved": {f"{sku}.X": {"priceDimensions": {"x": {"unit": "Quantity", "pricePerUnit": {"USD": "999"}}}}},
        },
    })  # fmt: skip


@dataclass
class PriceList:
    """Answers with these pages, one after the other; or fails."""

    pages: Sequence[Sequence[str]] = ()
    error: Exception | None = None
    hangs: bool = False
    region: str = "eu-central-1"
    endpoint_url: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def call(
        self, operation: str, /, *, service: Literal["ec2", "pricing"] = "ec2", **parameters: Any
    ) -> dict[str, Any]:
        assert (operation, service) == ("get_products", "pricing")
        self.asked.append(parameters)
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        page = int(parameters.get("NextToken", 0))
        more = {"NextToken": str(page + 1)} if page + 1 < len(self.pages) else {}
        return {"FormatVersion": "aws_v1", "PriceList": list(self.pages[page]), **more}


def types_asked(asked: dict[str, Any]) -> list[str]:
    (types,) = [each["Value"] for each in asked["Filters"] if each["Field"] == "instanceType"]
    return str(types).split(",")


@pytest.mark.parametrize(
    ("name", "region", "usd"),
    [
        ("m7i.large", "us-east-1", 0.1008),
        ("m7i.48xlarge", "us-east-1", 9.6768),
        ("m7i.xlarge", "eu-central-1", 0.2415),
        ("m7g.medium", "us-east-1", 0.0408),
        ("t3.micro", "us-east-1", 0.0104),
        ("g5.12xlarge", "us-east-1", 5.672),
        ("g4dn.xlarge", "us-west-2", 0.526),
        ("p5.48xlarge", "us-east-1", 55.04),
    ],
)
def test_table_has_aws_prices(name: str, region: str, usd: float) -> None:
    price = bundled(name, region)
    assert price is not None
    assert price.usd == pytest.approx(usd, rel=0.002)


@pytest.mark.parametrize(
    ("name", "region"),
    [("m99.large", "us-east-1"), ("g5.large", "us-east-1"), ("m7i.metal-24xl", "us-east-1"), ("m7i.large", "mars-1"),
     ("p4de.24xlarge", "eu-west-1"), ("", "us-east-1")],
)  # fmt: skip
def test_the_table_does_not_guess(name: str, region: str) -> None:
    assert bundled(name, region) is None


def test_table_names_regions_with_an_accelerator() -> None:
    assert {"us-east-1", "us-west-2"} <= set(regions_with("a100"))
    assert "eu-central-1" not in regions_with("H200")
    assert regions_with("Abacus") == []


def test_the_question_is_for_linux_by_the_hour() -> None:
    asked = question(["m7i.large", "p5.48xlarge"], "eu-central-1")
    values = {each["Field"]: each["Value"] for each in asked["Filters"]}
    assert values["regionCode"] == "eu-central-1"
    assert values["instanceType"] == "m7i.large,p5.48xlarge"
    assert {each["Type"] for each in asked["Filters"]} == {"TERM_MATCH", "ANY_OF"}


def test_only_prices_of_an_hour_on_shared_hardware_are_understood() -> None:
    answer = [
        product("m7i.large", "0.12"),
        product("m7i.large", "0.13", tenancy="Dedicated"),
        product("m7i.large", "0.14", region="eu-west-1"),
        product("m7i.xlarge", "0.0000000000"),
        product("m7i.2xlarge", "0.5", unit="Quantity"),
    ]
    assert understand(answer, "eu-central-1") == {"m7i.large": 0.12}


@given(st.dictionaries(st.from_regex(r"[a-z]\d[a-z]?\.\d?xlarge", fullmatch=True), st.floats(0.001, 500), max_size=9))
def test_price_list_is_parsed(said: dict[str, float]) -> None:
    answer = [product(name, repr(usd)) for name, usd in said.items()]
    assert understand(answer, "eu-central-1") == said


async def test_old_prices_are_asked_for_once_a_month(tmp_path: Path) -> None:
    kept, types = tmp_path / "cache" / "prices.json", ["m7i.large", "zz9.large"]
    api = PriceList([[product("m7i.large", "0.2")], [product("zz9.large", "0.3")]])
    assert await on_demand(api, types, now=NOW, kept=kept) == {"m7i.large": 0.2, "zz9.large": 0.3}
    assert [types_asked(each) for each in api.asked] == [types, types]
    again = PriceList(error=NotAuthorized("no"))
    assert await on_demand(again, types, now=NOW + MONTH_S - 1, kept=kept) == {"m7i.large": 0.2, "zz9.large": 0.3}
    assert not again.asked
    assert await on_demand(again, types, now=NOW + MONTH_S + 1, kept=kept) == {"m7i.large": 0.2, "zz9.large": 0.3}
    assert again.asked


async def test_many_types_are_several_questions() -> None:
    types = [f"m{number}.24xlarge" for number in range(100)]
    api = PriceList([[]])
    await on_demand(api, types, now=NOW)
    assert [name for each in api.asked for name in types_asked(each)] == types
    assert all(len(",".join(types_asked(each))) <= 1024 for each in api.asked)


@pytest.mark.parametrize(
    "api",
    [PriceList(error=NotAuthorized("no")), PriceList([["{"]]), PriceList([["{}"]]), PriceList([["[]"]])],
    ids=["refused", "garbage", "empty", "another form"],
)
async def test_without_the_price_list_the_table_does(api: PriceList) -> None:
    table = bundled("m7i.large", api.region)
    assert table is not None
    assert await on_demand(api, ["m7i.large", "zz9.large"], now=NOW) == {"m7i.large": table.usd}


async def test_a_price_list_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.providers.aws.catalogue.PATIENCE_S", 0.01)
    assert "m7i.large" in await on_demand(PriceList(hangs=True), ["m7i.large"], now=NOW)


async def test_the_prices_of_an_endpoint_of_ones_own_are_not_remembered_as_awss(tmp_path: Path) -> None:
    kept, types = tmp_path / "prices.json", ["m7i.large"]
    own = PriceList([[product("m7i.large", "0.2")]], endpoint_url="http://127.0.0.1:5000")
    assert await on_demand(own, types, now=NOW, kept=kept) == {"m7i.large": 0.2}
    assert not kept.exists()
    await on_demand(PriceList([[product("m7i.large", "0.3")]]), types, now=NOW, kept=kept)
    assert await on_demand(own, types, now=NOW, kept=kept) == {"m7i.large": 0.2}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"m7i.large": 3}', '{"m7i.large": ["a", "b"]}', "\x00\xff"])
async def test_a_spoilt_cache_is_no_cache(content: str, tmp_path: Path) -> None:
    kept = tmp_path / "prices.json"
    kept.write_bytes(content.encode("latin1"))
    assert await on_demand(PriceList([[product("m7i.large", "0.2")]]), ["m7i.large"], now=NOW, kept=kept) == {
        "m7i.large": 0.2
    }
    assert json.loads(kept.read_text()) == {"m7i.large": [0.2, NOW]}
    assert [path.name for path in tmp_path.iterdir()] == ["prices.json"]


async def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = tmp_path / "file" / "prices.json"
    assert await on_demand(PriceList([[product("m7i.large", "0.2")]]), ["m7i.large"], now=NOW, kept=kept)


def test_the_cache_is_where_outriders_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    assert cache_file("eu-central-1") == tmp_path / "aws" / "prices-eu-central-1.json"
