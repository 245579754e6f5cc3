"""Eventual consistency: answers of a moment ago, and what is too young to be known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

from .account import Account

Open = Callable[..., Account]


@pytest.fixture
def account(open_account: Open) -> Account:
    account = open_account(stale_s=30.0, stop_s=1.0)
    account.image()
    return account


def test_an_instance_is_not_known_right_after_its_launch(account: Account):
    (one,) = account.run()
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        account.described(one)
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        account.ec2.terminate_instances(InstanceIds=[one])
    assert account.described() == []
    account.cloud.advance(31)
    assert account.states(one) == ["running"]


def test_states_lag(account: Account):
    (one,) = account.run()
    account.cloud.advance(60)
    (change,) = account.ec2.terminate_instances(InstanceIds=[one])["TerminatingInstances"]
    assert change["CurrentState"]["Name"] == "shutting-down"
    account.cloud.advance(20)
    assert account.states(one) == ["running"]
    assert account.cloud.instance(one).state == "terminated"
    account.cloud.advance(20)
    assert account.states(one) == ["terminated"]


def test_tags_lag(account: Account):
    (one,) = account.run(TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "1"}]}])
    account.cloud.advance(31)
    account.ec2.create_tags(Resources=[one], Tags=[{"Key": "a", "Value": "2"}])

    def tags() -> list[dict[str, str]]:
        return account.described(one)[0]["Tags"]

    assert tags() == [{"Key": "a", "Value": "1"}]
    account.cloud.advance(31)
    assert tags() == [{"Key": "a", "Value": "2"}]


def test_templates_and_groups_lag(account: Account):
    def names() -> list[str]:
        return [each["GroupName"] for each in account.ec2.describe_security_groups()["SecurityGroups"]]

    group = account.ec2.create_security_group(GroupName="mine", Description="of a test")["GroupId"]
    with pytest.raises(ClientError, match=r"InvalidGroup\.NotFound"):
        account.ec2.describe_security_groups(GroupIds=[group])
    with pytest.raises(ClientError, match=r"InvalidGroup\.NotFound"):
        account.run(SecurityGroupIds=[group])
    assert names() == ["default"]
    template = account.template()
    with pytest.raises(ClientError, match=r"InvalidLaunchTemplateId\.NotFound"):
        account.run(LaunchTemplate={"LaunchTemplateId": template})
    account.cloud.advance(31)
    assert sorted(names()) == ["default", "mine"]
    account.run(SecurityGroupIds=[group], LaunchTemplate={"LaunchTemplateId": template})


def test_answers_waver(open_account: Open):
    account = open_account(stale_s=30.0, wavering=True)
    account.run()
    account.cloud.advance(15)
    found = [len(account.described()) for _ in range(40)]
    assert set(found) == {0, 1}
    assert found != sorted(found), "a later answer shows an earlier state"
