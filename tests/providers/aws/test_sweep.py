"""The end of a pool while EC2 is away, refuses, or keeps something: on a virtual clock, against an EC2 made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import anyio
import pytest
import trio.testing

from outrider.providers.aws.api import Api
from outrider.providers.aws.cloud import EC2Cloud
from outrider.providers.cloud import teardown
from outrider.providers.cloud.calls import CallRefused
from outrider.providers.cloud.inventory import patience_s
from outrider.providers.cloud.labels import LAUNCH, POOL
from outrider.providers.cloud.teardown import sweep
from outrider.providers.errors import NotAuthorized, NotGone, ProviderError
from outrider.providers.shared.journal import Intent

pytestmark = pytest.mark.anyio
LEASE_S = 120.0
MACHINES = ("i-1", "i-2")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class HandMade:
    """EC2 as far as a teardown asks it. ``refuses``: by call, until when it raises what."""

    region, endpoint_url, profile = "us-east-1", None, None

    def __init__(self, *machines: str) -> None:
        self.states = dict.fromkeys(machines, "running")
        self.things = {"LaunchTemplates": ["lt"], "PlacementGroups": ["pg"], "SecurityGroups": ["sg-1"]}
        self.refuses: dict[str, tuple[float, ProviderError]] = {}
        self.calls: list[str] = []

    def _on_changes(self, operation: str) -> None:
        self.calls.append(operation)
        until, error = self.refuses.get(operation) or self.refuses.get("*") or (0.0, ProviderError(""))
        if anyio.current_time() < until:
            raise error

    async def pages(self, operation: str, key: str, /, **parameters: Any) -> list[dict[str, Any]]:
        await anyio.sleep(0.01)
        self._on_changes(operation)
        labels = [{"Key": POOL, "Value": "p"}, {"Key": LAUNCH, "Value": "token"}]
        if key == "Reservations":
            shown = [
                {"InstanceId": each, "State": {"Name": state}, "Tags": labels} for each, state in self.states.items()
            ]
            return [{"Instances": shown}]
        names = {"LaunchTemplates": "LaunchTemplateName", "PlacementGroups": "GroupName", "SecurityGroups": "GroupId"}
        return [{names[key]: each, "Tags": labels} for each in self.things[key]]

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        await anyio.sleep(0.01)
        self._on_changes(operation)
        if operation == "terminate_instances":
            self.states |= dict.fromkeys(parameters["InstanceIds"], "terminated")
            return {
                "TerminatingInstances": [
                    {"InstanceId": each, "CurrentState": {"Name": "shutting-down"}}
                    for each in parameters["InstanceIds"]
                ]
            }
        kinds = {"template": "LaunchTemplates", "placement": "PlacementGroups", "security": "SecurityGroups"}
        self.things[next(kind for word, kind in kinds.items() if word in operation)].clear()
        return {}


AWAY = CallRefused("AWS cannot be reached", retry_after_s=2.0, code="EndpointConnectionError")


async def swept(ec2: HandMade, told: list[str], machines: Sequence[str] = MACHINES) -> teardown.Swept:
    made = [Intent("p", "any", "token", {}, ids=(*machines, "lt", "pg", "sg-1"))]
    return await sweep(
        EC2Cloud(cast("Api", ec2)),
        "p",
        journal=None,
        own_intents=made,
        known=machines,
        lease_s=LEASE_S,
        patience_s=patience_s(LEASE_S),
        warn=told.append,
    )


async def test_an_ec2_that_is_away_for_a_while_costs_time_and_nothing_else() -> None:
    ec2, told = HandMade(*MACHINES), list[str]()
    ec2.refuses["*"] = (anyio.current_time() + 100, AWAY)
    gone = await swept(ec2, told)
    assert gone.machines == MACHINES
    assert ec2.things == {"LaunchTemplates": [], "PlacementGroups": [], "SecurityGroups": []}
    assert told == ["the end of i-1, i-2 is not confirmed yet, and is asked for again (AWS cannot be reached)"]


async def test_when_the_lease_is_over_patience_is_and_every_machine_is_named() -> None:
    ec2, began = HandMade(*MACHINES), anyio.current_time()
    ec2.refuses["*"] = (began + 3600, AWAY)
    with pytest.raises(NotGone, match="may still be running: i-1, i-2") as caught:
        await swept(ec2, [])
    assert patience_s(LEASE_S) <= anyio.current_time() - began <= patience_s(LEASE_S) + 10
    error = caught.value
    assert error.machines == MACHINES
    assert error.by is not None
    assert not error.unsure
    assert error.__cause__ is AWAY


async def test_who_is_refused_says_at_once_what_is_left_and_until_when() -> None:
    ec2, began = HandMade(*MACHINES), anyio.current_time()
    ec2.refuses["*"] = (began + 3600, NotAuthorized("the AWS credentials have expired", code="RequestExpired"))
    with pytest.raises(NotGone, match="credentials have expired") as caught:
        await swept(ec2, [])
    assert anyio.current_time() - began < 1
    assert caught.value.machines == MACHINES
    assert isinstance(caught.value.__cause__, NotAuthorized)


@pytest.mark.parametrize(
    ("operation", "left"),
    [
        ("delete_launch_template", "launch template lt"),
        ("delete_placement_group", "placement group pg"),
        ("describe_launch_templates", "perhaps a launch template"),
        ("delete_security_group", "security group sg-1"),
    ],
)
async def test_one_thing_that_cannot_be_removed_keeps_no_other(operation: str, left: str) -> None:
    ec2, began = HandMade(*MACHINES), anyio.current_time()
    ec2.refuses[operation] = (began + 3600, AWAY)
    with pytest.raises(NotGone) as caught:
        await swept(ec2, [])
    assert (caught.value.left, caught.value.machines, caught.value.costs) == ((left,), (), False)
    assert set(ec2.states.values()) == {"terminated"}
    assert sum(map(len, ec2.things.values())) == 1


async def test_machines_that_are_known_to_have_ended_are_not_named() -> None:
    ec2 = HandMade(*MACHINES)
    ec2.refuses["*"] = (anyio.current_time() + 3600, AWAY)
    made = [Intent("p", "any", "token", {}, ids=MACHINES)]
    with pytest.raises(NotGone) as caught:
        await sweep(
            EC2Cloud(cast("Api", ec2)), "p", journal=None, own_intents=made, known=(), ended=MACHINES, lease_s=LEASE_S
        )
    assert not caught.value.costs
