"""What users give: options, credentials, a project; and the role that the page has for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import GCP
from outrider.providers.base import AcceleratorRequest, EntryPoints, LaunchRequest
from outrider.providers.cloud import small_labels as labels
from outrider.providers.errors import BadRequest, NotAuthorized
from outrider.testing.clouds.gcp.extract_schema import METHODS
from outrider.testing.clouds.gcp.front import GCE

pytestmark = pytest.mark.anyio
ROLE = Path(__file__).parents[3] / "docs" / "providers" / "gcp-role.yaml"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": "other"}, "'public' or 'private'"),
        ({"zones": "us-central1-a"}, r"takes a list: write GCP\(zones=\['us-central1-a'\]\)"),
        ({"max_run_hours": 0}, "more than 0 and at most 2880"),
        ({"max_run_hours": 3000}, "more than 0 and at most 2880"),
        ({"ssh_from": "nowhere"}, r"GCP\(ssh_from"),
        ({"project": ""}, r"GCP\(project=...\) is empty"),
        ({"labels": {"Team": "x"}}, "at most 63 of a-z"),
        ({"labels": {"outrider-pool": "x"}}, "not for users"),
        ({"machine_types": ["n2-standard-4"]}, "instance_types"),
    ],
)
def test_options_that_can_never_work_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        GCP(**options)  # type: ignore[arg-type]


async def test_without_credentials_it_says_how_to_get_them(surroundings: None) -> None:
    with pytest.raises(NotAuthorized, match="gcloud auth application-default login"):
        async with GCP("us-central1").open("pool", EntryPoints()):
            pass


async def test_a_file_that_is_no_credentials_is_told(surroundings: None, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("{}")
    with pytest.raises(NotAuthorized, match=r"key\.json"):
        async with GCP("us-central1", credentials=str(tmp_path / "key.json")).open("pool", EntryPoints()):
            pass


async def test_a_region_has_to_be_known(cloud: GCE, gcp: Callable[..., GCP], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="no region is known"):
        async with gcp(region=None).open("pool", EntryPoints()):
            pass
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-central1")
    async with gcp(region=None).open("pool", EntryPoints()):
        pass


async def test_a_token_is_asked_for_once_and_again_when_it_is_refused(cloud: GCE, gcp: Callable[..., GCP]) -> None:
    from outrider.testing.clouds.shared.faults import CallRefused

    cloud.faults.add(CallRefused("regionInstances.bulkInsert", "authError", "Invalid Credentials", 401))
    async with gcp().open("pool", EntryPoints()) as fleet:
        assert len(await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", 1), 1)) == 1
    assert cloud.tokens == 2


async def test_offers_are_in_the_order_in_which_they_are_asked_for(cloud: GCE, gcp: Callable[..., GCP]) -> None:
    found = await gcp().offers(LaunchRequest("k", 1, accelerator=AcceleratorRequest("L4")))
    assert {each.kind for each in found} == {"g2-standard-4", "g2-standard-8", "g2-standard-24"}
    assert [each.attempt for each in found] == sorted(each.attempt for each in found)
    assert found[0].market == "spot"
    assert 0.2 < found[0].hourly_usd < 0.5
    (cheap,) = {each.hourly_usd for each in found if (each.kind, each.market) == ("g2-standard-4", "on-demand")}
    assert cheap == pytest.approx(0.7068 + 60 * 0.1 / 730 + 0.005, abs=0.001)  # as Google's page of prices has it


def test_labels_of_any_pool_are_labels_and_differ() -> None:
    pools = ["quick-otter", "Quick-otter", "quick.otter", "quick_otter", "q" * 63, "1.", "ä"]
    values = [labels.value(pool) for pool in pools]
    assert len({*values}) == len(pools)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,63}", value) for value in values)
    names = [f"{labels.stem(pool)}-0123456789-999" for pool in pools]
    assert len({*names}) == len(pools)
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names)


def test_the_role_allows_every_method_that_is_used() -> None:
    allowed = set(re.findall(r"- (compute\.[\w.]+)", ROLE.read_text()))
    made = {"regionInstances.bulkInsert": "instances.create", "instances.aggregatedList": "instances.list"}
    used = {made.get(method, method).replace(".insert", ".create") for method in METHODS}
    assert {f"compute.{each}" for each in used} - allowed == set()
    assert not any("set" in each and "instances" not in each for each in allowed)
