"""`outrider offers` shows what a pool would get, in the order in which it would be tried, and starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider.engine.cli.failures import guarded
from outrider.engine.cli.main import app
from outrider.engine.cli.offers import SpecOffers, cells
from outrider.providers.base import MachineOffer
from outrider.testing import EC2, Behaviour

if TYPE_CHECKING:
    from .conftest import Outrider

AWS = ("--provider", "aws", "--set", "provider.region=us-east-1")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[EC2]:
    with EC2(Behaviour(types=("g6.*", "g5.*", "m7i.*"))) as cloud:
        monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        yield cloud
        assert cloud.left() == []
        assert cloud.ledger.cost_usd() == 0


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert guarded(lambda: app(["offers", *words])) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


def test_offers_of_a_cloud_are_in_the_order_in_which_they_are_tried(cloud: EC2, outrider: Outrider) -> None:
    found: list[dict[str, Any]] = outrider.json("offers", *AWS, "--accelerator", "L4")
    assert outrider.status == 0
    assert {each["accelerator"] for each in found} == {"L4"}
    attempts = [each["attempt"] for each in found]
    assert attempts == sorted(attempts)
    markets = [each["market"] for each in found]
    assert markets == sorted(markets, reverse=True), "spot first"
    first = [each["hourly_usd"] for each in found if each["attempt"] == 1]
    assert max(first) < 1.6 * min(first)
    assert found[0].keys() >= {"provider", "kind", "place", "region", "vcpus", "memory_gb", "architecture"}


def test_the_table_has_prices_and_what_all_nodes_cost(cloud: EC2, outrider: Outrider) -> None:
    words = ("--accelerator", "L4", "--nodes", "3")
    found = outrider.json("offers", *AWS, *words)
    assert outrider("offers", *AWS, *words) == 0
    said = outrider.said()
    assert "g6.xlarge" in said
    least = min(each["hourly_usd"] for each in found if each["attempt"] == 1)
    assert f"3 nodes of the first would cost {3 * least:.2f} USD per hour" in said
    assert f"and {len(found) - 20} more" in said


def test_what_is_not_to_be_had_is_said_with_what_comes_close(cloud: EC2, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the closest it has is L4" in refusal(capsys, *AWS, "--accelerator", "L40S")
    assert "the cheapest in us-east-1 is g6.xlarge" in refusal(
        capsys, *AWS, "--accelerator", "L4", "--set", "max_hourly_cost=0.01"
    )


def test_no_region_is_an_error_with_a_next_step(cloud: EC2, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
            patched.delenv(name, raising=False)
        patched.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        assert "region" in refusal(capsys, "--provider", "aws")


def test_a_pool_of_the_file_is_taken_and_options_win(outrider: Outrider, tmp_path: Path) -> None:
    (tmp_path / "outrider.toml").write_text(
        '[pools.mine]\nprovider = {name = "ssh", hosts = ["a", "b"]}\nranks_per_node=2\n'
    )
    found = outrider.json("offers", "--pool", "mine")
    assert [(each["kind"], each["hourly_usd"], each["vcpus"]) for each in found] == [("a", 0.0, None), ("b", 0.0, None)]
    (here,) = outrider.json("offers", "--pool", "mine", "--provider", "local")
    assert here["kind"] == "this computer"
    assert here["vcpus"] >= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--accelerator", "L4:64"), "L4"),
        (("--set", "vcpus=100000"), "vcpus=100000, and this computer has"),
        (("--hosts", "a", "--nodes", "2"), "needs 2 nodes, and SSH(hosts=...) has 1"),
        (("--pool", "train"), "there is no outrider.toml"),
        (("--set", "provider.name=aws", "--set", "provider.regon=x"), "region"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, *words)


def test_specs_are_compared_as_a_pool_compares_them() -> None:
    spec = SpecOffers(
        "aws", [MachineOffer(kind="a", hourly_usd=2.0), MachineOffer(kind="b", hourly_usd=1.0, attempt=2)]
    )
    assert spec.hourly_usd == 2.0
    assert SpecOffers("aws", why_not="no").hourly_usd == float("inf")


def test_what_is_not_known_is_shown_as_that() -> None:
    assert cells("ssh", MachineOffer(kind="gpu1")) == ("1", "gpu1", "ssh", "", "?", "?", "?", "?", "")
    offer = MachineOffer(kind="g5.xlarge", place="us-east-1a", hourly_usd=0.5, accelerators=1, accelerator="A10G")
    assert cells("aws", offer)[4:8] == ("0.5000", "?", "?", "1 A10G")
