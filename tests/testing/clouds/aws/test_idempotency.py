"""ClientToken: a call that is repeated, because its answer was lost, has its effect once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from botocore.parsers import ResponseParserError

from outrider.testing import aws_faults as faults

from .account import Account, taken


def test_the_same_token_gives_the_same_instances(account: Account):
    first, again = account.run(2, ClientToken="once"), account.run(2, ClientToken="once")
    assert first == again
    assert account.run(2, ClientToken="twice") != first
    assert len(account.cloud.instances()) == 4
    (described, _) = account.described(*first)
    assert described["ClientToken"] == "once"


def test_a_token_with_other_parameters_is_a_mistake(account: Account):
    account.run(2, ClientToken="once")
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        account.run(3, ClientToken="once")
    assert len(account.cloud.instances()) == 2


def test_a_lost_answer_and_its_repetition(account: Account):
    template = account.template()
    account.cloud.faults.add(faults.LostAnswer("CreateFleet"))
    with pytest.raises(ConnectionClosedError):
        account.fleet(3, template=template, ClientToken="once")
    assert len(account.cloud.instances()) == 3
    assert taken(account.fleet(3, template=template, ClientToken="once")) == 3
    assert len(account.cloud.instances()) == 3
    assert account.cloud.calls["CreateFleet"] == 2


@pytest.mark.parametrize("valid_http", [True, False])
def test_half_an_answer_had_its_whole_effect(account: Account, valid_http: bool):
    template = account.template()
    account.cloud.faults.add(faults.HalfAnswer("CreateFleet", valid_http=valid_http))
    with pytest.raises(ResponseParserError):  # boto3 reads what there is, whatever length was promised
        account.fleet(3, template=template, ClientToken="once")
    assert taken(account.fleet(3, template=template, ClientToken="once")) == 3
    assert len(account.cloud.instances()) == 3


def test_a_repetition_may_be_answered_by_the_fleets_id_alone(open_account: Callable[..., Account]):
    account = open_account(terse_repeats=True)
    template = account.template()
    first, again = (account.fleet(2, template=template, ClientToken="once") for _ in range(2))
    assert (first["FleetId"], taken(first)) == (again["FleetId"], 2)
    assert "Instances" not in again
    (fleet,) = account.ec2.describe_fleets(FleetIds=[again["FleetId"]])["Fleets"]
    assert taken(fleet) == 2


def test_a_lost_request_had_no_effect(account: Account):
    image = account.image()
    account.cloud.faults.add(faults.LostRequest("RunInstances"))
    with pytest.raises(ConnectionClosedError):
        account.run(ImageId=image)
    assert account.cloud.instances() == []


def test_failed_call_can_be_repeated_with_its_token(account: Account):
    account.cloud.faults.add(faults.NoCapacity(times=6))  # one for each zone of the region
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity") as refused:
        account.run(ClientToken="once")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert len(account.run(ClientToken="once")) == 1


def test_templates_have_tokens_too(account: Account):
    assert account.template() != account.template("other")
    with pytest.raises(ClientError, match="AlreadyExistsException"):
        account.template()
    said = {"LaunchTemplateName": "third", "LaunchTemplateData": {"InstanceType": "t3.micro"}, "ClientToken": "t"}
    first, again = (account.ec2.create_launch_template(**said)["LaunchTemplate"] for _ in range(2))
    assert first["LaunchTemplateId"] == again["LaunchTemplateId"]
