"""Which host gets which container with which GPUs, on hosts whose commands answer by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import trio
from trio.testing import MockClock

from outrider import Containers
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud import labels
from outrider.providers.cloud.offers import Cooldowns
from outrider.providers.containers.cloud import VENDOR, ContainerCloud, ContainerLauncher, ContainerOrder, Spot
from outrider.providers.containers.runtime import DEVICES, Runtime
from outrider.providers.errors import BadRequest, HostAway, NoCapacity
from outrider.providers.shared.login_host import Ended
from outrider.providers.shared.resource_ownership import Claim

pytestmark = pytest.mark.anyio
GPUS = "".join(f"{number}, GPU-{number}, NVIDIA A100-SXM4-80GB, 81920\n" for number in range(4))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Host:
    """Answers the commands that look, and knows the containers by their names and labels; None: it does not answer."""

    where = "there"

    def __init__(self, containers: Mapping[str, Mapping[str, str]] | None, gpus: str = "") -> None:
        self.containers, self.gpus = containers, gpus

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = 60.0) -> Ended:
        if self.containers is None:
            raise HostAway("there is away", retry_after_s=5.0)
        if argv[0] == "nvidia-smi":
            return Ended(0 if self.gpus else 127, self.gpus)
        found = [{"Name": name, "Config": {"Labels": dict(each)}} for name, each in self.containers.items()]
        return Ended(0, json.dumps(found))


async def spots(hosts: Mapping[str, Host], count: int, **more: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The host and the GPUs of each container that a pool p would start."""
    wanted = more.pop("accelerator", None)
    provider = Containers("i:1", hosts=list(hosts), config=False, **more)
    cloud = ContainerCloud([Runtime(name, None, host, ("podman",)) for name, host in hosts.items()], {})
    launcher = ContainerLauncher(provider, cloud, cast("Any", SimpleNamespace(pool="p")))
    plan = await launcher.plan(LaunchRequest(client_key="", nodes=1, accelerator=wanted), Cooldowns(VENDOR), ())
    orders: list[ContainerOrder] = []
    while len(found := [spot for order in orders for spot in order.spots]) < count:  # as two launches at a time do
        orders.append(await launcher.order(plan, plan.rounds[0], (count + 1) // 2))
    return [(spot.runtime.host, spot.devices) for spot in found]


def used(pool: str, devices: str = "") -> dict[str, str]:
    return {labels.POOL: pool, DEVICES: devices}


class Killed:
    """Each command there is ended by a signal before it has said anything."""

    where = "there"

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = 60.0) -> Ended:
        return Ended(None, "")


async def test_a_host_whose_commands_are_killed_has_not_said_that_it_has_nothing() -> None:
    host = Runtime("a", None, Killed(), ("podman",))
    with pytest.raises(HostAway, match="A signal ended podman ps there"):
        await host.containers("outrider")
    with pytest.raises(HostAway, match="A signal ended podman rm there"):
        await host.remove(["x"])
    with pytest.raises(HostAway, match="A signal ended podman pull i:1 there"):
        await host.fetch("i:1", "missing")
    with pytest.raises(BadRequest, match="no GPU that its driver tells of"):
        await host.gpus(AcceleratorRequest("A100", 1))


class FirstIsLost:
    """The first start there has no answer, the next is refused."""

    where = "there"

    def __init__(self) -> None:
        self.starts = 0

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = 60.0) -> Ended:
        self.starts += 1
        if self.starts == 1:
            raise HostAway("there is away", retry_after_s=5.0)
        return Ended(125, "", "no space left on device")


async def test_a_start_without_an_answer_is_not_hidden_by_a_refusal_of_the_same_host() -> None:
    host = Runtime("a", None, FirstIsLost(), ("podman",))
    cloud = ContainerCloud([host], {})
    launcher = ContainerLauncher(
        Containers("i:1", hosts=["a"], config=False), cloud, cast("Any", SimpleNamespace(pool="p"))
    )
    request = LaunchRequest(client_key="", nodes=2)
    order = ContainerOrder(
        token="t", offers=(), count=2, hourly_usd=0.0, at=0.0, request=request, spots=[Spot("x", host), Spot("y", host)]
    )
    with pytest.raises(HostAway, match="there is away"):
        await launcher._started(order, {})


async def test_the_host_with_the_fewest_containers_of_the_pool_comes_first() -> None:
    hosts = {"a": Host({"x": used("p"), "y": used("p")}), "b": Host({"z": used("other")}), "c": Host(None)}
    assert await spots(hosts, 4) == [("b", ()), ("b", ()), ("a", ()), ("b", ())]


async def test_gpus_that_any_pool_has_are_not_given_again() -> None:
    hosts = {"a": Host({"x": used("other", "0,2")}, GPUS), "b": Host({}, GPUS)}
    wanted = AcceleratorRequest("A100", 2)
    assert await spots(hosts, 3, accelerator=wanted) == [("a", (1, 3)), ("b", (0, 1)), ("b", (2, 3))]
    with pytest.raises(NoCapacity, match="2 A100 is in use, by this pool or another"):
        await spots(hosts, 4, accelerator=wanted)


async def test_a_host_without_such_gpus_says_what_it_has() -> None:
    with pytest.raises(BadRequest, match="a has not 1 H100: it has A100-SXM4-80GB"):
        await spots({"a": Host({}, GPUS)}, 1, accelerator=AcceleratorRequest("H100"))


async def test_no_more_are_on_a_host_than_are_allowed() -> None:
    with pytest.raises(NoCapacity, match="per_host=1"):
        await spots({"a": Host({"x": used("p")})}, 1, per_host=1)


async def test_hosts_that_do_not_answer_are_no_capacity_and_are_asked_again() -> None:
    with pytest.raises(NoCapacity, match="there is away") as caught:
        await spots({"a": Host(None)}, 1)
    assert caught.value.retry_after_s == 5.0
    assert caught.value.kind == "there is away"  # FLEET-14: twice in a row it ends a pool that starts


def test_containers_of_a_host_that_is_away_are_not_adopted_and_the_end_waits_for_their_lease() -> None:
    hosts = {"a": Host({"x": used("p")}), "b": Host(None), "c": Host(None)}
    mine = Claim("p", ids=frozenset({"a/x", "b/y"}))

    async def adopt_and_leave() -> None:
        cloud = ContainerCloud([Runtime(name, None, host, ("podman",)) for name, host in hosts.items()], {})
        cloud.used = set()  # as a launcher sets it that has started none

        async def states() -> dict[str, str]:
            return {each.id: each.state for each in await cloud.describe("p", also=sorted(mine.ids), of=mine)}

        assert await states() == {"a/x": "running", "b/y": "terminated"}
        cloud.lease_s = 120.0
        for _ in range(2):
            with pytest.raises(HostAway):
                await states()
            await anyio.sleep(100.0)
        assert await states() == {"a/x": "running", "b/y": "terminated"}

    trio.run(adopt_and_leave, clock=MockClock(autojump_threshold=0))
