"""Lambda's launches: one machine in each, never two for one intent, no faster than Lambda allows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import anyio
import httpx
import pytest

from outrider import Lambda
from outrider.providers.base import EntryPoints, LaunchRequest, Machine, MachineReachable, Warned
from outrider.providers.cloud import labels
from outrider.providers.cloud.fleet import CloudFleet
from outrider.providers.cloud.http import HttpApi
from outrider.providers.errors import BadRequest, NoCapacity, QuotaExceeded
from outrider.providers.lambda_labs.api import LAUNCH, VERSION, service
from outrider.providers.lambda_labs.cloud import LambdaCloud as Cloud
from outrider.providers.lambda_labs.cloud import LambdaLauncher
from outrider.testing import LambdaCloud, cloud_faults
from outrider.testing.clouds.shared.front import Request

from ..cloud.suite import events, on_a_mock_clock

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
Provider = Callable[..., Lambda]


async def test_a_launch_of_several_makes_one_call_for_each(cloud: LambdaCloud, provider: Provider) -> None:
    async with provider(tags={"team": "ml"}).open("pool", EntryPoints()) as fleet:
        machines = await fleet.launch(REQUEST, 3)
        assert len(machines) == 3
        assert cloud.calls["launchInstance"] == 3
        assert cloud.calls["addSSHKey"] == 1
        for each in cloud.machines():
            assert each.labels[labels.POOL] == "pool"
            assert each.labels["team"] == "ml"
            assert each.user_data.startswith("#cloud-config")
            assert each.body["name"] == "outrider-pool"
        told = await events(fleet, 4)
        warned, *reachable = told
        assert isinstance(warned, Warned)
        assert "outrider gc --apply" in warned.text
        assert all(isinstance(each, MachineReachable) for each in reachable)
    assert cloud.left() == []


async def test_machines_of_a_pool_are_in_one_region_and_no_room_there_is_told(
    cloud: LambdaCloud, provider: Provider
) -> None:
    cloud.room = {("cpu_4x_general", "us-east-1"): 2, ("cpu_4x_general", "us-west-1"): 1}
    async with provider().open("pool", EntryPoints()) as fleet:
        machines = [*await fleet.launch(REQUEST, 2)]
        assert {each.facts["zone"] for each in machines} == {"us-east-1"}
        with pytest.raises(NoCapacity, match="in us-east-1, and nothing is to be had there now"):
            await fleet.launch(REQUEST, 1)


async def test_what_the_list_has_no_room_for_is_not_asked_for(cloud: LambdaCloud, provider: Provider) -> None:
    cloud.room = {}
    async with provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(NoCapacity, match="says that it has no cpu_4x_general left in its regions now"):
            await fleet.launch(REQUEST, 1)


async def test_a_quota_says_what_to_do(cloud: LambdaCloud, provider: Provider) -> None:
    refused = cloud_faults.CallRefused("launchInstance", "global/quota-exceeded", "Quota exceeded.", 400, times=None)
    cloud.faults.add(refused)
    async with provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(QuotaExceeded, match=r"quota of the Lambda account is used up") as caught:
            await fleet.launch(REQUEST, 1)
        assert "limit of the account" in caught.value.advice


async def test_a_key_that_lambda_does_not_know_yet_is_waited_for(cloud: LambdaCloud, provider: Provider) -> None:
    unknown = cloud_faults.CallRefused(
        "launchInstance", "global/object-does-not-exist", "SSH key x does not exist.", 404
    )
    cloud.faults.add(unknown)
    async with provider().open("pool", EntryPoints()) as fleet:
        assert len(await fleet.launch(REQUEST, 1)) == 1


async def test_a_machine_that_powered_itself_off_is_ended_with_its_pool(cloud: LambdaCloud, provider: Provider) -> None:
    async with provider().open("pool", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        await events(fleet, 2)
        cloud.hypervisor.shut_down(machine.id)  # type: ignore[attr-defined]
        assert cloud.machine(machine.id).state == "running"  # and costs money
    assert cloud.left() == []


async def test_a_spot_machine_is_refused_in_words(provider: Provider) -> None:
    async with provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(BadRequest, match="Lambda sells no spot machines"):
            await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", 1, allocation="spot"), 1)


# --- limits, on a mock clock ------------------------------------------------------------------------------------------


class NoJournal:
    """In place of a `Recorder`, whose journal needs threads and so asyncio."""

    pool, made, journal = "pool", (), None

    async def create(self, kind: str, token: str, facts: object, ask: Any, ids_in: Any) -> Any:
        return await ask()


def test_eight_machines_obey_the_limits_without_an_error() -> None:
    machines: list[Machine] = []
    lasted_s: list[float] = []
    with LambdaCloud() as front:

        def answer(request: httpx.Request) -> httpx.Response:
            headers = {name.lower(): value for name, value in request.headers.items()}
            reply = front.respond(Request(request.method, request.url.path, {}, headers, request.content))
            assert reply is not None
            return httpx.Response(reply.status, json=reply.body)

        async def launch(api: HttpApi) -> None:
            cloud, recorder = Cloud(api, {}), cast("Any", NoJournal())
            async with anyio.create_task_group() as tasks:
                fleet: Any = CloudFleet(cloud, LambdaLauncher(Lambda(), cloud, recorder), recorder, tasks)
                fleet.start()
                began = anyio.current_time()
                machines.extend(await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", 8), 8))
                lasted_s.append(anyio.current_time() - began)
                tasks.cancel_scope.cancel()

        sent = on_a_mock_clock(service(None), launch, answer)
    assert len({machine.id for machine in machines}) == 8
    launches = sent[f"POST {VERSION}{LAUNCH}"]
    assert len(launches) == 8
    assert all(later - earlier >= 12 for earlier, later in pairwise(launches))
    assert all(launches[place + 5] - launches[place] > 60 for place in range(3))  # at most five a minute
    times = sorted(at for each in sent.values() for at in each)
    assert all(later - earlier >= 0.999 for earlier, later in pairwise(times))
    assert 85 < lasted_s[0] < 100
