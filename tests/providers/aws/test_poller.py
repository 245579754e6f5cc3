"""When EC2 is asked about a pool's machines, and when not: on a virtual clock, against an EC2 made by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
import trio.testing

from outrider.providers.aws.api import Api
from outrider.providers.aws.catalogue import VENDOR
from outrider.providers.aws.cloud import EC2Cloud
from outrider.providers.base import Machine, MachineGone, MachineId, MachineReachable, Warned
from outrider.providers.cloud.fleet import Poller
from outrider.providers.cloud.inventory import GRACE_S, InstanceInventory, InventoryChanges
from outrider.providers.cloud.labels import LAUNCH, POOL
from outrider.providers.errors import NotAuthorized, ProviderError
from outrider.providers.shared.watching import BLIND_S, Watching

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class HandMade:
    """EC2 as far as the poller asks it."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.launches: dict[str, str] = {}
        self.untagged: set[str] = set()
        self.asked_at: list[float] = []
        self.ended: list[str] = []
        self.error: Exception | None = None

    async def pages(self, operation: str, key: str, /, **parameters: Any) -> list[dict[str, Any]]:
        assert (operation, key) == ("describe_instances", "Reservations")
        if parameters["Filters"][0]["Name"] == "instance-id":
            return [{"Instances": [self._instance(each) for each in parameters["Filters"][0]["Values"]]}]
        self.asked_at.append(anyio.current_time())
        if self.error is not None:
            raise self.error
        return [{"Instances": [self._instance(each) for each in self.states if each not in self.untagged]}]

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        assert operation == "terminate_instances"
        self.ended += parameters["InstanceIds"]
        for each in parameters["InstanceIds"]:
            self.states[each] = "shutting-down"
        answers = [
            {"InstanceId": each, "CurrentState": {"Name": "shutting-down"}} for each in parameters["InstanceIds"]
        ]
        return {"TerminatingInstances": answers}

    def _instance(self, name: str) -> dict[str, Any]:
        labels = {POOL: "p", LAUNCH: self.launches.get(name, "")}
        return {
            "InstanceId": name,
            "State": {"Name": self.states[name]},
            "PrivateIpAddress": "10.0.0.7",
            "Tags": [{"Key": key, "Value": value} for key, value in labels.items()],
        }


@asynccontextmanager
async def polling(ec2: HandMade) -> AsyncIterator[tuple[Poller, InstanceInventory, list[InventoryChanges]]]:
    told: list[InventoryChanges] = []
    instances = InstanceInventory(VENDOR, public=False)
    poller = Poller(EC2Cloud(cast("Api", ec2)), "p", instances, told.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poller.run)
        await anyio.wait_all_tasks_blocked()
        yield poller, instances, told
        tasks.cancel_scope.cancel()


def created(ec2: HandMade, poller: Poller, instances: InstanceInventory, *names: str) -> None:
    for name in names:
        ec2.states[name] = "pending"
        instances.created(Machine(MachineId(name), None, "key"), "ubuntu", anyio.current_time())
    poller.begun()


async def test_poller_is_idle_without_machines() -> None:
    ec2 = HandMade()
    async with polling(ec2):
        await anyio.sleep(3600)
    assert ec2.asked_at == []


async def test_all_machines_are_asked_about_at_once_and_often_only_while_something_changes() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, told):
        began = anyio.current_time()
        created(ec2, poller, instances, *(f"i-{number}" for number in range(64)))
        await anyio.sleep(10)
        asked = [at - began for at in ec2.asked_at]
        assert asked[:3] == pytest.approx([0.25, 0.75, 1.75])
        assert 9 <= len(asked) <= 12
        ec2.states = dict.fromkeys(ec2.states, "running")
        await anyio.sleep(1)
        assert sum(len(news.events) for news in told) == 64
        asked_before = len(ec2.asked_at)
        await anyio.sleep(60)
        assert len(ec2.asked_at) - asked_before == 12  # every 5 s
        began = anyio.current_time()
        created(ec2, poller, instances, "i-another")
        await anyio.sleep(2)
        assert [at - began for at in ec2.asked_at if at > began] == pytest.approx([0.25, 0.75, 1.75])
        assert sum(len(news.events) for news in told) == 64


async def test_a_machine_whose_tags_somebody_removes_is_not_taken_for_gone() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, told):
        created(ec2, poller, instances, "i-1", "i-2")
        ec2.states = dict.fromkeys(ec2.states, "running")
        await anyio.sleep(5)
        ec2.untagged.add("i-1")
        await anyio.sleep(3 * GRACE_S)
        assert [type(event) for news in told for event in news.events] == [MachineReachable] * 2
        assert instances.machines == ["i-1", "i-2"]
        ec2.states["i-1"] = "terminated"
        await anyio.sleep(10)
        assert [type(event) for event in told[-1].events or told[-2].events] == [MachineGone]


async def test_an_ec2_that_does_not_answer_is_left_alone_for_longer_and_longer() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, told):
        created(ec2, poller, instances, "i-1")
        ec2.error = NotAuthorized("the credentials have expired")
        await anyio.sleep(100)
        gaps = [after - before for before, after in zip(ec2.asked_at, ec2.asked_at[1:], strict=False)]
        assert gaps == pytest.approx([1, 2, 4, 8, 16, 30, 30])
        poller.begun()  # nor does anything that begins hurry it
        asked = len(ec2.asked_at)
        await anyio.sleep(1)
        assert len(ec2.asked_at) == asked
        ec2.error, ec2.states["i-1"] = None, "running"
        await anyio.sleep(30)
        assert [type(event) for news in told for event in news.events] == [Warned, MachineReachable, Warned]


def warnings(told: list[InventoryChanges]) -> list[str]:
    return [event.text for news in told for event in news.events if isinstance(event, Warned)]


async def test_a_poller_that_fails_by_a_defect_goes_on_and_says_so_once() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, told):
        created(ec2, poller, instances, "i-1")
        ec2.error = KeyError("State")
        await anyio.sleep(20)
        assert warnings(told) == [
            "who watches the machines of p has failed by a defect (KeyError: 'State'): it is tried again"
        ]
        ec2.error, ec2.states["i-1"] = None, "running"
        await anyio.sleep(30)
        assert [type(event) for news in told for event in news.events] == [Warned, MachineReachable]


async def test_a_poller_that_is_blind_for_long_says_so_once_and_again_when_it_sees() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, told):
        created(ec2, poller, instances, "i-1")
        ec2.error = ProviderError("AWS cannot be reached")
        await anyio.sleep(BLIND_S - 2)
        assert warnings(told) == []
        await anyio.sleep(600)
        (blind,) = warnings(told)
        assert blind.startswith(
            "nothing has been seen of the machines of p for 31 s, in 6 tries (AWS cannot be reached)"
        )
        ec2.error = None
        await anyio.sleep(60)
        assert warnings(told)[1:] == ["the machines of p are seen again, after 631 s"]


async def test_who_waits_for_an_answer_gets_the_next_one() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, _):
        created(ec2, poller, instances, "i-1")
        with anyio.fail_after(60):
            await poller.answer()
            await poller.answer()
        assert len(ec2.asked_at) == 2


async def test_unwanted_machine_is_ended() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, told):
        created(ec2, poller, instances, "i-mine", "i-stopped")
        ec2.states |= {"i-lost": "running", "i-other": "running", "i-stopped": "stopped"}
        ec2.launches |= {"i-lost": "token", "i-other": "another's"}
        instances.launch_lost("token", anyio.current_time())
        await anyio.sleep(2)
        assert set(ec2.ended) == {"i-lost", "i-stopped"}
        gone = [event for news in told for event in news.events if isinstance(event, MachineGone)]
        assert [event.id for event in gone] == ["i-stopped"]


async def test_a_call_without_an_answer_is_looked_after_for_as_long_as_it_may_show() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, _):
        instances.launch_lost("token", anyio.current_time())
        poller.begun()
        began = anyio.current_time()
        await anyio.sleep(600)
        assert GRACE_S - 2 <= ec2.asked_at[-1] - began <= GRACE_S + 1


async def test_machines_of_a_lost_call_are_ended_when_the_network_is_back() -> None:
    ec2 = HandMade()
    async with polling(ec2) as (poller, instances, _):
        ec2.error = ProviderError("AWS cannot be reached")
        instances.launch_lost("token", anyio.current_time())
        poller.begun()
        await anyio.sleep(10 * GRACE_S)
        ec2.error, ec2.states["i-lost"], ec2.launches["i-lost"] = None, "running", "token"
        await anyio.sleep(GRACE_S)
    assert ec2.ended == ["i-lost"]


async def test_the_invariant_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """WATCH-1"""

    def ends(watching: Watching, error: Exception, now: float) -> None:
        raise error

    monkeypatch.setattr(Watching, "failed", ends)
    with pytest.raises(ExceptionGroup) as caught:
        await test_a_poller_that_fails_by_a_defect_goes_on_and_says_so_once()
    assert caught.group_contains(KeyError)
