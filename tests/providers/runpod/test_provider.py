"""What `RunPod` may be given, which key it takes, and what it says when RunPod refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider import RunPod
from outrider.providers.base import AcceleratorRequest, EntryPoints, LaunchRequest
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from outrider.providers.runpod.api import service, words_of
from outrider.providers.runpod.cloud import IMAGE
from outrider.testing import RunPodCloud, cloud_faults

from ..cloud.suite import meant

ENTRY_POINTS = EntryPoints()
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1)
GPU = LaunchRequest("ssh-ed25519 CLIENT", 1, accelerator=AcceleratorRequest("RTX4090", count=2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cloud": "all"}, r"RunPod\(cloud=...\) is 'secure' or 'community'"),
        ({"data_centers": "EU-RO-1"}, r"write RunPod\(data_centers=\['EU-RO-1'\]\)"),
        ({"instance_types": []}, "leave it out"),
        ({"image": ""}, r"RunPod\(image=...\) is empty"),
        ({"min_cuda": "12"}, "a version as in '12.4'"),
        ({"min_cuda": 12.4}, "takes a text, not 12.4"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunPod(**options)


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'data_centers'"):
        RunPod(data_center="EU-RO-1")  # type: ignore[call-arg]


def test_runpod_is_a_value_of_containers() -> None:
    one = RunPod(data_centers=["EU-RO-1", "EU-RO-1"])
    assert one == RunPod(data_centers=("EU-RO-1",))
    assert hash(one) == hash(RunPod(data_centers=("EU-RO-1",)))
    assert (one.name, one.local, one.outlives, one.containers) == ("runpod", False, True, True)


# --- offers, and what a launch says -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_offers_have_prices_and_stock(provider: Callable[..., RunPod]) -> None:
    found = await provider(data_centers=["US-KS-2"]).offers(GPU)
    assert [(each.kind, each.region, each.hourly_usd, each.stock, each.accelerators, each.vcpus) for each in found] == [
        ("NVIDIA GeForce RTX 4090", "US-KS-2", 1.38, "high", 2, None)
    ]
    community = await provider(cloud="community").offers(GPU)
    assert {each.hourly_usd for each in community} == {0.68}
    assert [each.kind for each in await provider().offers(REQUEST)][:3] == ["cpu3c"] * 3


@pytest.mark.anyio
async def test_a_data_center_that_there_is_not_is_refused(provider: Callable[..., RunPod]) -> None:
    with pytest.raises(BadRequest, match="did you mean 'EU-RO-1'"):
        await provider(data_centers=["EU-RO-2"]).offers(REQUEST)


@pytest.mark.anyio
async def test_what_a_user_chooses_is_in_the_launch(cloud: RunPodCloud, provider: Callable[..., RunPod]) -> None:
    chosen = provider(
        image="org/image:tag", registry="cred", network_volume="vol", min_cuda="12.4", data_centers=["US-TX-3"]
    )
    request = LaunchRequest(
        "ssh-ed25519 C",
        1,
        accelerator=AcceleratorRequest("RTX4090", count=2),
        vcpus=9,
        memory_gb=100.0,
        disk_gb=77,
        max_lifetime_s=3600.0,
    )
    async with chosen.open("x" * 63, ENTRY_POINTS) as fleet:
        (machine,) = await fleet.launch(request, 1)
        said = cloud.machine(machine.id).body
    assert (said["image"], said["registry"], said["disk"], said["cloud"]) == ("org/image:tag", "cred", 77, "SECURE")
    assert said["mounts"] == {"network": [{"volumeId": "vol", "path": "/workspace"}]}
    assert said["dataCenterIds"] == ["US-TX-3"]
    assert {**said["gpu"]} == {"id": "NVIDIA GeForce RTX 4090", "count": 2, "vcpuCount": 32, "memory": 250}
    assert said["ports"] == ["22/tcp"]
    assert said["entrypoint"] == ["sh", "-c"]
    assert float(said["env"]["OUTRIDER_UNTIL"]) > 0
    assert machine.facts["vcpus"] == "32"
    assert machine.hourly_cost == 1.38


@pytest.mark.anyio
async def test_the_image_of_a_pool_comes_before_the_providers_and_that_before_runpods(
    cloud: RunPodCloud, provider: Callable[..., RunPod]
) -> None:
    async with provider(image="mine").open("pool", ENTRY_POINTS) as fleet:
        (one,) = await fleet.launch(REQUEST, 1)
        (two,) = await fleet.launch(LaunchRequest("k", 1, container="of-the-pool"), 1)
        assert [cloud.machine(each.id).body["image"] for each in (one, two)] == ["mine", "of-the-pool"]
    async with provider().open("pool", ENTRY_POINTS) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        assert cloud.machine(machine.id).body["image"] == IMAGE


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_account_without_a_balance_says_where_to_add_credits(
    cloud: RunPodCloud, provider: Callable[..., RunPod]
) -> None:
    cloud.credit = False
    async with provider().open("pool", ENTRY_POINTS) as fleet:
        with pytest.raises(NotAuthorized, match=r"no balance left: add credits at https://console"):
            await fleet.launch(REQUEST, 1)
    assert cloud.calls["createPod"] == 1  # no other offer would do


@pytest.mark.anyio
async def test_a_type_that_the_account_may_not_use_is_passed_over(
    cloud: RunPodCloud, provider: Callable[..., RunPod]
) -> None:
    cloud.faults.add(cloud_faults.Unauthorized("createPod", times=1))
    async with provider().open("pool", ENTRY_POINTS) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        assert machine.facts["type"] == "cpu5c"  # cpu3c was refused
        cloud.faults.add(cloud_faults.Unauthorized("createPod"))
        with pytest.raises(QuotaExceeded, match="has no access to cpu5c, or the key may not create pods") as caught:
            await fleet.launch(LaunchRequest("k", 1, vcpus=2), 1)
        assert "access denied" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "detail", "kind", "words"),
    [
        (401, "invalid api key", NotAuthorized, "make one at https://console.runpod.io/user/settings"),
        (402, "Insufficient balance.", NotAuthorized, "add credits"),
        (403, "access denied", NotAuthorized, "does not allow POST /x"),
        (400, "There are no longer any instances available with the requested specifications.", NoCapacity, "left"),
        (400, "There are not enough free GPUs on the host machine", NoCapacity, "left"),
        (400, "You have reached the spending limit of your account.", QuotaExceeded, "a limit of the RunPod account"),
        (403, "The pod limit of this account is reached", QuotaExceeded, "a limit of the RunPod account"),
        (404, "resource not found", ProviderError, "does not know"),
        (422, "Unknown GPU type: X", BadRequest, "does not take POST /x as it is"),
        (413, "too large", BadRequest, "does not take"),
        (400, "mounts.network must not be empty", BadRequest, "does not take"),
        (409, "belongs to a cluster", ProviderError, "refused POST /x"),
        (500, "oops", ProviderError, "failed at POST"),
    ],
)
def test_every_answer_of_runpod_has_words(status: int, detail: str, kind: type[ProviderError], words: str) -> None:
    code, message = words_of({"title": "T", "status": status, "detail": detail})
    meant(service(None), status, code, message, kind=kind, words=words)


def test_the_violations_of_a_request_are_told() -> None:
    body = {"title": "T", "status": 422, "detail": "Request validation failed.", "errors": ["$: missing 'name'", 3]}
    assert words_of(body) == ("", "Request validation failed. $: missing 'name'")
    assert words_of("a page") == ("", "")
    assert words_of({"title": "Bad Gateway"}) == ("", "Bad Gateway")
