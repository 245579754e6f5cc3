"""What `Lambda` may be given, which key it takes, and what it says when Lambda refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider import Lambda
from outrider.providers.base import AcceleratorRequest, EntryPoints, LaunchRequest
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from outrider.providers.lambda_labs.api import service
from outrider.providers.lambda_labs.cloud import read
from outrider.providers.shared.resource_ownership import Thing
from outrider.testing import LambdaCloud, cloud_faults

from ..cloud.suite import meant

ENTRY_POINTS = EntryPoints()
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regions": "us-east-1"}, r"write Lambda\(regions=\['us-east-1'\]\)"),
        ({"instance_types": []}, "leave it out"),
        ({"file_systems": [3]}, "list of names"),
        ({"image": ""}, r"Lambda\(image=...\) is empty"),
        ({"tags": {"outrider:pool": "mine"}}, "not for users"),
        ({"tags": {"Team": "ml"}}, "small letters"),
        ({"tags": {"team": "x" * 129}}, "up to 128 characters"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Lambda(**options)


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'regions'"):
        Lambda(region="us-east-1")  # type: ignore[call-arg]


def test_lambda_is_a_value() -> None:
    one = Lambda(regions=["us-east-1", "us-east-1"], tags={"team": "ml"})
    assert one == Lambda(regions=("us-east-1",), tags={"team": "ml"})
    assert hash(one) == hash(Lambda(regions=("us-east-1",), tags={"team": "ml"}))
    assert (one.name, one.local, one.outlives) == ("lambda", False, True)


# --- offers, and what a launch says -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_offers_have_prices_and_room(provider: Callable[..., Lambda]) -> None:
    a10 = LaunchRequest("k", 1, accelerator=AcceleratorRequest("A10"))
    found = await provider(regions=["us-west-1"]).offers(a10)
    assert [(each.kind, each.region, each.hourly_usd, each.stock, each.market) for each in found] == [
        ("gpu_1x_a10", "us-west-1", 1.29, "some", "on-demand")
    ]


@pytest.mark.anyio
async def test_what_a_user_chooses_is_in_the_launch(cloud: LambdaCloud, provider: Callable[..., Lambda]) -> None:
    chosen = provider(
        image="lambda-stack-22-04", file_systems=["data"], firewall_rulesets=["c4d2"], instance_types=["gpu_1x_a10"]
    )
    async with chosen.open("x" * 63, ENTRY_POINTS) as fleet:
        (machine,) = await fleet.launch(LaunchRequest("ssh-ed25519 C", 1, max_lifetime_s=3600.0), 1)
        said = cloud.machine(machine.id).body
    assert said["image"] == {"family": "lambda-stack-22-04"}
    assert said["file_system_names"] == ["data"]
    assert said["firewall_rulesets"] == [{"id": "c4d2"}]
    assert len(said["name"]) == 64
    tags = {each["key"]: each["value"] for each in said["tags"]}
    assert int(tags["outrider:until"]) == pytest.approx(float(tags["outrider:at"]) + 3600, abs=1)


@pytest.mark.anyio
async def test_an_images_id_is_told_from_a_family(cloud: LambdaCloud, provider: Callable[..., Lambda]) -> None:
    name = "43336648-096d-4cba-9aa2-f9bb7727639d"
    async with provider(image=name).open("pool", ENTRY_POINTS) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        assert cloud.machine(machine.id).body["image"] == {"id": name}


@pytest.mark.anyio
async def test_an_inactive_account_says_where_to_look(cloud: LambdaCloud, provider: Callable[..., Lambda]) -> None:
    cloud.faults.add(cloud_faults.Unauthorized("launchInstance"))
    async with provider().open("pool", ENTRY_POINTS) as fleet:
        with pytest.raises(NotAuthorized, match="the Lambda account is inactive: look into it at"):
            await fleet.launch(REQUEST, 1)


@pytest.mark.parametrize(
    ("code", "status", "kind", "words"),
    [
        ("global/invalid-api-key", 401, NotAuthorized, "make one at https://cloud.lambda.ai/api-keys"),
        ("global/account-inactive", 403, NotAuthorized, "inactive"),
        ("global/invalid-address", 403, NotAuthorized, "billing address"),
        ("global/quota-exceeded", 400, QuotaExceeded, "ask Lambda's support"),
        ("instance-operations/launch/insufficient-capacity", 400, NoCapacity, "no such machine left"),
        ("instance-operations/launch/file-system-in-wrong-region", 400, BadRequest, "another region"),
        ("global/invalid-parameters", 400, BadRequest, "does not take this request"),
        ("global/object-does-not-exist", 404, ProviderError, "does not know"),
        ("global/duplicate", 400, ProviderError, "already"),
        ("global/internal-error", 500, ProviderError, "failed at POST"),
        ("something/new", 400, BadRequest, "as it is"),
    ],
)
def test_every_code_of_lambda_has_words(code: str, status: int, kind: type[ProviderError], words: str) -> None:
    meant(service(None), status, code, "its own.", kind=kind, words=words)


def test_a_strangers_machine_of_which_little_is_said_is_in_nobodys_way() -> None:
    assert read({"id": "i-1", "status": "active"}).whose == Thing("i-1")
