"""Interruptions of spot instances, their requests, and their prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outrider.testing import Paper

from .account import Account

Open = Callable[..., Account]
NOTICE, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def account(open_account: Open, paper: Paper) -> Account:
    return open_account(hypervisor=paper)


def test_an_interruption_from_the_recommendation_to_the_end(account: Account, paper: Paper):
    (one,) = account.run_spot()
    account.cloud.advance(1)
    account.cloud.interrupt(one, notice_s=120, rebalance_s=60)
    assert "noticeTime" in json.loads(paper.served[one][REBALANCE])
    assert NOTICE not in paper.served[one]
    account.cloud.advance(60)
    notice = json.loads(paper.served[one][NOTICE])
    assert notice["action"] == "terminate"
    ends = datetime.fromisoformat(notice["time"]).timestamp()
    assert ends == pytest.approx(account.cloud.time() + 120, abs=30)
    assert paper.served[one]["spot/termination-time"] == notice["time"]
    account.cloud.advance(80)
    assert account.states(one) == ["running"]
    account.cloud.advance(50)
    (told,) = account.described(one)
    assert told["State"]["Name"] == "terminated"
    assert told["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert told["StateTransitionReason"] == "Server.SpotInstanceTermination"
    assert one not in paper.on


def test_without_notice(account: Account, paper: Paper):
    (one,) = account.run_spot()
    account.cloud.advance(1)
    account.cloud.interrupt(one, notice_s=0)
    account.cloud.advance(1)
    assert account.states(one) == ["terminated"]


@pytest.mark.parametrize("rebalance_s", [0, 60])
def test_a_notice_that_is_withdrawn(account: Account, paper: Paper, rebalance_s: float):
    (one,) = account.run_spot()
    account.cloud.advance(1)
    account.cloud.interrupt(one, notice_s=120, rebalance_s=rebalance_s)
    account.cloud.advance(10)
    assert (NOTICE in paper.served[one]) is (rebalance_s == 0)
    account.cloud.withdraw(one)
    assert NOTICE not in paper.served[one]
    assert REBALANCE not in paper.served[one]
    account.cloud.advance(300)
    assert NOTICE not in paper.served[one]
    assert account.states(one) == ["running"]


def test_only_spot_instances_are_interrupted(account: Account):
    (one,) = account.run()
    with pytest.raises(ValueError, match="on-demand"):
        account.cloud.interrupt(one)
    with pytest.raises(KeyError):
        account.cloud.interrupt("i-0123456789abcdef0")


def test_requests_follow_their_instances(account: Account):
    one, two = account.run_spot(2)
    account.cloud.advance(1)
    account.ec2.terminate_instances(InstanceIds=[one])
    account.cloud.interrupt(two, notice_s=0)
    account.cloud.advance(1)
    requests = account.ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert {each["InstanceId"]: (each["State"], each["Status"]["Code"]) for each in requests} == {
        one: ("closed", "instance-terminated-by-user"),
        two: ("closed", "instance-terminated-no-capacity"),
    }


def test_a_request_can_be_cancelled_and_its_instance_goes_on(account: Account):
    (one,) = account.run_spot()
    account.cloud.advance(1)
    (told,) = account.described(one)
    account.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[told["SpotInstanceRequestId"]])
    account.cloud.advance(1)
    assert account.states(one) == ["running"]
    assert "spot request" not in [each.kind for each in account.cloud.left()]


def test_prices_differ_by_zone_and_stay_below_on_demand(account: Account):
    now = datetime.now(UTC)
    asked = {"InstanceTypes": ["m7i.large", "g5.xlarge"], "ProductDescriptions": ["Linux/UNIX"], "StartTime": now}
    history = account.ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]
    prices = {(each["InstanceType"], each["AvailabilityZone"]): float(each["SpotPrice"]) for each in history}
    assert len(prices) == len(history), "one price of each, if the time is now"
    assert len({usd for (name, _), usd in prices.items() if name == "m7i.large"}) > 1
    assert all(0.02 < usd < 0.11 for (name, _), usd in prices.items() if name == "m7i.large")
    assert all(0.2 < usd < 1.2 for (name, _), usd in prices.items() if name == "g5.xlarge")


@pytest.mark.parametrize(
    "where",
    [{"AvailabilityZone": "us-east-1a"}, {"Filters": [{"Name": "availability-zone", "Values": ["us-east-1a"]}]}],
)
def test_the_history_goes_back(account: Account, where: dict[str, Any]):
    since = datetime.now(UTC) - timedelta(hours=24)
    asked = {"InstanceTypes": ["m7i.large"], "ProductDescriptions": ["Linux/UNIX"], **where}
    pages = account.ec2.get_paginator("describe_spot_price_history").paginate(
        StartTime=since, PaginationConfig={"PageSize": 2}, **asked
    )
    times = [each["Timestamp"] for page in pages for each in page["SpotPriceHistory"]]
    assert len(times) == 5
    assert times == sorted(times, reverse=True)
    assert times[-1] <= since < times[-2]


def test_given_prices_are_charged(open_account: Open):
    account = open_account(spot_usd={"m7i.large": 3.6}, on_demand_usd={"m7i.large": 7.2})
    account.run_spot()
    account.run()
    account.cloud.advance(3600)
    assert account.cloud.ledger.cost_usd() == pytest.approx(10.8, rel=0.01)
