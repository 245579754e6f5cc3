"""What `Vast` may be given, which key it takes, which offers it finds, and what it says when Vast.ai refuses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outrider import Vast
from outrider.providers.base import AcceleratorRequest, Containing, LaunchRequest
from outrider.providers.cloud.http import HttpApi
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from outrider.providers.shared.resource_ownership import Thing
from outrider.providers.vast.api import END, KEY_FILE, LIMITS, LIST, SEARCH, names_of, query, service, words_of
from outrider.providers.vast.cloud import VastSurveyor, read
from outrider.testing import VastCloud

from ..cloud.suite import meant, on_a_mock_clock
from .conftest import KEY

REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1)
H100 = LaunchRequest("k", 1, accelerator=AcceleratorRequest("H100", 8, 80.0))
Provider = Callable[..., Vast]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regions": "US"}, r"write Vast\(regions=\['US'\]\)"),
        ({"regions": ["Texas"]}, "codes of countries"),
        ({"regions": []}, "leave it out"),
        ({"reliability": 1.5}, r"Vast\(reliability=...\) is a number from 0 to 1, not 1.5"),
        ({"bid": 0.5}, r"Vast\(bid=...\) is a number from 1 to 10"),
        ({"min_cuda": "12.8"}, "a number"),
        ({"image": ""}, r"Vast\(image=...\) is empty"),
        ({"image": "ubuntu 24.04"}, "is no image"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Vast(**options)


def test_vast_is_a_value_whose_machines_are_containers() -> None:
    with pytest.raises(TypeError, match="did you mean 'regions'"):
        Vast(region=["US"])  # type: ignore[call-arg]
    one = Vast(regions=["us", "US"])
    assert one.regions == ("US",)
    assert hash(one) == hash(Vast(regions=["us", "US"]))
    assert (one.name, one.local, one.outlives) == ("vast", False, True)
    assert isinstance(one, Containing)
    assert one.containers


# --- the key ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_key_is_where_vasts_own_client_has_it(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAST_API_KEY")
    usual = Path(KEY_FILE).expanduser()
    usual.parent.mkdir(parents=True)
    usual.write_text(KEY)
    assert await provider().offers(REQUEST)


# --- offers -----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_offers_of_both_markets_have_prices_with_their_disk(provider: Provider) -> None:
    found = await provider().offers(H100)
    assert {(each.kind, each.market, each.region, each.accelerator, each.accelerators) for each in found} == {
        ("8x H100 SXM", market, "US", "H100", 8) for market in ("spot", "on-demand")
    }
    disk = 32 * 0.15 / 720
    assert min(each.hourly_usd or 0.0 for each in found if each.market == "spot") == pytest.approx(9.9 + disk, abs=1e-3)
    assert min(each.hourly_usd or 0.0 for each in found if each.market == "on-demand") == pytest.approx(
        16 + disk, abs=1e-3
    )
    assert (found[0].market, found[0].place) == ("spot", "US #3000")
    assert (found[0].vcpus, found[0].memory_gb) == (192, 64)
    on_demand = LaunchRequest("k", 1, accelerator=AcceleratorRequest("H100"), allocation="on-demand")
    assert {each.market for each in await provider().offers(on_demand)} == {"on-demand"}


@pytest.mark.anyio
async def test_without_an_accelerator_any_machine_will_do_and_countries_are_chosen(provider: Provider) -> None:
    found = await provider(regions=["DE"]).offers(REQUEST)
    assert {(each.kind, each.region) for each in found} == {("1x RTX 4090", "DE")}


@pytest.mark.anyio
async def test_unreliable_and_unverified_machines_are_taken_only_if_that_is_said(provider: Provider) -> None:
    a100 = LaunchRequest("k", 1, accelerator=AcceleratorRequest("A100"), allocation="on-demand")
    with pytest.raises(NoCapacity, match="no offer of 1 A100"):
        await provider().offers(a100)
    (one,) = await provider(reliability=0.5).offers(a100)
    assert one.kind == "1x A100 PCIE"
    assert len(await provider(reliability=0.5, verified=False).offers(a100)) == 2
    large = LaunchRequest("k", 1, accelerator=AcceleratorRequest("A100", memory_gb=80.0), allocation="on-demand")
    assert len(await provider(reliability=0.5, verified=False).offers(large)) == 1


@pytest.mark.anyio
async def test_what_can_never_be_had_names_what_comes_close(provider: Provider) -> None:
    with pytest.raises(BadRequest, match=r"max_hourly_cost=0\.01 is too little"):
        await provider().offers(LaunchRequest("k", 1, max_hourly_cost=0.01))
    with pytest.raises(BadRequest, match="GB of memory"):
        await provider().offers(LaunchRequest("k", 1, memory_gb=4000))


@pytest.mark.parametrize(
    ("accelerator", "names"),
    [
        ("H100", ["H100 PCIE", "H100 SXM", "H100 NVL"]),
        ("RTX4090", ["RTX 4090"]),
        ("RTX2080Ti", ["RTX 2080 Ti"]),
        ("RTXA6000", ["RTX A6000"]),
        ("RTX6000Ada", ["RTX 6000Ada"]),
        ("RTXPRO6000", ["RTX PRO 6000", "RTX PRO 6000 WS", "RTX PRO 6000 S"]),
        ("T4", ["Tesla T4"]),
        ("L40S", ["L40S"]),
        ("B200", ["B200"]),
    ],
)
def test_accelerators_have_vasts_names(accelerator: str, names: list[str]) -> None:
    assert names_of(accelerator) == names
    wanted = AcceleratorRequest(accelerator)
    assert all(wanted.fits(each, 0.0) for each in names)


def test_a_search_asks_for_what_fits_alone() -> None:
    request = LaunchRequest("k", 1, accelerator=AcceleratorRequest("A100", 2, 80.0), vcpus=8, max_lifetime_s=7200.0)
    asked = query(Vast(regions=["se"], min_cuda=None), request, "bid")
    assert asked["gpu_name"] == {"in": ["A100 PCIE", "A100 SXM4"]}
    assert asked["geolocation"] == {"in": ["SE"]}
    assert asked["duration"] == {"gte": 7200.0}
    assert (asked["type"], asked["num_gpus"], asked["allocated_storage"]) == ("bid", {"gte": 2}, 32)
    assert "cuda_max_good" not in asked


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (404, {"error": "invalid_args", "msg": "error 404/3603: no_such_ask Instance type by id 1 is not available."},
         NoCapacity, "somebody else has rented"),
        (410, {"error": "no_such_ask", "msg": "no longer available"}, NoCapacity, "somebody else has rented"),
        (400, {"error": "invalid_price", "msg": "stale"}, NoCapacity, "price of that machine"),
        (400, {"error": "invalid_args", "msg": "disk"}, BadRequest, "does not take POST /x as it is"),
        (400, {"error": "insufficient_credit", "msg": "Your account lacks credit"}, QuotaExceeded, "no credit left"),
        (404, {"msg": "Invalid user key"}, NotAuthorized, "does not accept the API key"),
        (401, {"error": "auth_error", "msg": "No."}, NotAuthorized, "set VAST_API_KEY to a key"),
        (403, {"error": "x", "msg": "No."}, NotAuthorized, "does not allow POST /x"),
        (429, {"detail": "API requests too frequent"}, ProviderError, "called too often"),
        (404, {"error": "instances_not_found", "msg": "Instances 1 not found."}, ProviderError, "does not know that"),
    ],
)  # fmt: skip
def test_refusals_mean_what_can_be_done(
    status: int, body: dict[str, Any], kind: type[ProviderError], said: str
) -> None:
    code, message = words_of(body)
    meant(service(None), status, code, message, kind=kind, words=said)
    assert words_of(["no object"]) == ("", "")


def test_requests_keep_to_vasts_limits() -> None:
    """Rents 4.5 s apart, lists 1 s, deletions 3 s, and 10 searches in a minute."""

    async def calls(api: HttpApi) -> None:
        for method, path, times in (
            ("PUT", "/api/v0/asks/1/", 4),
            ("GET", LIST, 4),
            ("DELETE", END, 3),
            ("POST", SEARCH, 14),
        ):
            for _ in range(times):
                await api.call(method, path, body={})

    at = on_a_mock_clock(service("http://vast.example"), calls)
    least = {"PUT /api/v0/asks/1/": 4.5, f"GET {LIST}": 1.0, f"DELETE {END}": 3.0}
    for name, seconds in least.items():
        times = at[name]
        assert min(after - before for before, after in pairwise(times)) >= seconds, name
    searches = at[f"POST {SEARCH}"]
    assert all(searches[place + 13] - searches[place] >= 20 for place in range(len(searches) - 13))
    assert set(LIMITS) == {"search", "rent", "list", "end"}


@pytest.mark.anyio
async def test_another_accounts_place_is_refused(cloud: VastCloud, provider: Provider) -> None:
    place = {"account": "1", "endpoint_url": cloud.endpoint_url}
    with pytest.raises(NotAuthorized, match=r"of the Vast\.ai account 1, and VAST_API_KEY has a key of 4711"):
        await VastSurveyor().survey(place, ())


def test_a_strangers_instance_of_which_little_is_said_is_in_nobodys_way() -> None:
    assert read({"id": 1}).whose == Thing("1")
