"""`outrider offers` shows what a pool would get, in the order in which it would be tried, and starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from outrider.engine.cli import offers as offers_command
from outrider.engine.cli.common import guarded
from outrider.engine.cli.main import app
from outrider.engine.cli.offers import COLUMNS, SpecOffers, cells, fitting
from outrider.engine.config import tables
from outrider.providers import registry
from outrider.providers.base import LaunchRequest, MachineOffer
from outrider.providers.errors import NoCapacity, NotAuthorized
from outrider.providers.registry import Registered
from outrider.testing import EC2, Behaviour
from outrider.testing.fake_provider import Fake

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
        (("--provider", "local", "--accelerator", "L4:64"), "L4"),
        (("--provider", "local", "--set", "vcpus=100000"), "vcpus=100000, and this computer has"),
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
    assert cells("ssh", MachineOffer(kind="gpu1")) == ("1", "gpu1", "ssh", "", *"?????", "")
    offer = MachineOffer(
        kind="g5.xlarge", place="us-east-1a", hourly_usd=0.5, accelerators=1, accelerator="A10G", stock="low"
    )
    assert cells("aws", offer)[4:9] == ("0.5000", "?", "?", "1 A10G", "low")


# --- all clouds -------------------------------------------------------------------------------------------------------

Answer = Callable[[LaunchRequest], Awaitable[Sequence[MachineOffer]]]
H100 = MachineOffer(kind="gpu-1x", region="east", place="east-a", hourly_usd=3.0, accelerator="H100", accelerators=1)


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts clouds of these names and answers in the place of those that there are."""

    def rented(name: str, answer: Answer) -> type:
        class Rented(Fake):
            def __init__(self) -> None:
                super().__init__()
                self.name, self.offers = name, answer

        return Rented

    def put(**answers: Answer) -> None:
        table = {name: Registered(provider=f"rented_{name}:Rented", rents=True) for name in answers}
        monkeypatch.setattr(registry, "PROVIDERS", table)
        monkeypatch.setattr(tables, "PROVIDERS", table)
        for name, answer in answers.items():
            module = SimpleNamespace(Rented=rented(name, answer))
            monkeypatch.setitem(sys.modules, f"outrider.providers.rented_{name}", module)

    return put


def has(*offers: MachineOffer) -> Answer:
    async def answer(request: LaunchRequest) -> Sequence[MachineOffer]:
        assert request.accelerator is not None
        await checkpoint()
        return [offer for offer in offers if request.allocation != "spot" or offer.market == "spot"]

    return answer


def fails(error: Exception) -> Answer:
    async def answer(request: LaunchRequest) -> Sequence[MachineOffer]:
        await checkpoint()
        raise error

    return answer


async def hangs(request: LaunchRequest) -> Sequence[MachineOffer]:
    await anyio.sleep_forever()
    return []


def test_all_clouds_stand_in_one_table_by_price(clouds: Callable[..., None], outrider: Outrider) -> None:
    dear = replace(H100, kind="big-8x", hourly_usd=24.0, accelerators=8, stock="high", attempt=2)
    elsewhere = replace(H100, place="east-b", hourly_usd=3.5)
    clouds(one=has(dear, elsewhere, H100), two=has(replace(H100, kind="two-1x", region="west", hourly_usd=2.5)))
    assert outrider("offers", "--accelerator", "H100", "--nodes", "2") == 0
    heading, *rows, rest, cost = outrider.said().splitlines()
    assert heading.split() == ["type", "where", "market", "USD/h", "vCPUs", "GB", "GPUs", "stock", "arch"]
    assert [row.split()[0] for row in rows] == ["two-1x", "gpu-1x", "big-8x"]
    assert rows[2].split()[1:4] == ["one", "east-a", "24.0000"]
    assert "high" in rows[2]
    assert rest.strip() == "and 1 more, which --json has"
    assert cost.strip() == "2 nodes of two, which is asked first, would cost 5.00 USD per hour"
    found = outrider.json("offers", "--accelerator", "H100")
    assert [(each["provider"], each["hourly_usd"]) for each in found] == [
        ("two", 2.5), ("one", 24.0), ("one", 3.5), ("one", 3.0)
    ]  # fmt: skip


def test_a_cloud_that_cannot_be_asked_is_named_with_the_next_step(
    clouds: Callable[..., None], outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers_command, "ANSWER_S", 0.05)
    clouds(
        good=has(H100),
        closed=fails(NotAuthorized("there is no key: set CLOSED_KEY")),
        empty=fails(NoCapacity("empty has no H100 left", advice="Take another region.")),
        silent=hangs,
        broken=fails(KeyError("price")),
    )
    assert outrider("offers", "--accelerator", "H100") == 0
    said = outrider.said()
    assert "gpu-1x" in said
    refusals = [
        "closed: there is no key: set CLOSED_KEY",
        "empty: empty has no H100 left. Take another region.",
        "silent: silent has not answered within 0.05 s: try again, or name others by --provider",
        "broken: this is a defect of Outrider: report it (KeyError: 'price')",
    ]
    assert all(refusal in said.splitlines() for refusal in refusals), said
    assert [each["kind"] for each in outrider.json("offers", "--accelerator", "H100")] == ["gpu-1x"]
    assert sorted(outrider.errors.splitlines()) == sorted(refusals)


def test_clouds_are_asked_at_once(clouds: Callable[..., None], outrider: Outrider) -> None:
    asked: list[str] = []

    def after_the_other(name: str) -> Answer:
        async def answer(request: LaunchRequest) -> Sequence[MachineOffer]:
            asked.append(name)
            while len(asked) < 2:
                await checkpoint()
            return [H100]

        return answer

    clouds(one=after_the_other("one"), two=after_the_other("two"))
    assert outrider("offers", "--accelerator", "H100") == 0


def test_spot_machines_alone(clouds: Callable[..., None], outrider: Outrider) -> None:
    clouds(one=has(H100, replace(H100, market="spot", hourly_usd=1.0)), two=has(replace(H100, market="spot")))
    found = outrider.json("offers", "--accelerator", "H100", "--spot")
    assert [(each["provider"], each["market"]) for each in found] == [("one", "spot"), ("two", "spot")]


def test_where_no_cloud_has_any_each_says_why(clouds: Callable[..., None], outrider: Outrider) -> None:
    clouds(one=fails(NoCapacity("one has none")), two=fails(NotAuthorized("there is no key")))
    assert outrider("offers", "--accelerator", "H100") == 2
    assert outrider.said() == ""
    assert outrider.errors.splitlines() == ["one: one has none", "two: there is no key"]


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (200, []),
        (96, ["arch"]),
        (75, ["GB", "arch", "stock", "vCPUs"]),
        (5, ["GB", "arch", "market", "stock", "try", "vCPUs"]),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_with_whole_values(width: int, left_out: list[str]) -> None:
    row = (
        "1",
        "p5.48xlarge-long-name",
        "aws us-east-1a",
        "on-demand",
        "26.5432",
        "192",
        "2048",
        "8 H100",
        "?",
        "x86_64",
    )
    kept = fitting([row], COLUMNS, width)
    assert sorted({*COLUMNS} - {*kept}) == left_out
    assert {"type", "where", "USD/h", "GPUs"} <= {*kept}


def test_a_pipe_gets_whole_values(
    clouds: Callable[..., None], outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = replace(H100, kind="a-type-with-a-name-that-is-longer-than-the-terminal", architecture="x86_64")
    clouds(one=has(long))
    assert outrider("offers", "--accelerator", "H100") == 0
    heading, row, *_ = outrider.said().splitlines()
    assert heading.split()[-1] == "arch"
    assert long.kind in row
    assert row.split()[-1] == "x86_64"


def test_a_region_chooses_among_offers(clouds: Callable[..., None], outrider: Outrider) -> None:
    west = replace(H100, kind="west", region="west", place="west-a")
    clouds(one=has(H100, west), two=has(H100))
    assert outrider("offers", "--accelerator", "H100", "--region", "west") == 0
    assert outrider.said().splitlines()[-2].strip() == "two: it has such machines in east, and none in west"
    assert [each["kind"] for each in outrider.json("offers", "--accelerator", "H100", "--region", "west")] == ["west"]


def test_least_processors_and_the_highest_price_reach_the_cloud(
    clouds: Callable[..., None], outrider: Outrider
) -> None:
    async def answer(request: LaunchRequest) -> Sequence[MachineOffer]:
        await checkpoint()
        assert (request.vcpus, request.max_hourly_cost) == (16, 4.5)
        return [H100]

    clouds(one=answer)
    assert outrider("offers", "--vcpus", "16", "--max-price", "4.5") == 0


def test_a_cloud_without_such_a_region_is_named_before_it_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PROVIDERS", {each: registry.PROVIDERS[each] for each in ("aws", "gcp")})
    assert guarded(lambda: app(["offers", "--region", "atlantis"])) == 2
    told = capsys.readouterr().err
    assert "aws: AWS(region='atlantis')" in told
    assert "gcp: GCP(region='atlantis')" in told
