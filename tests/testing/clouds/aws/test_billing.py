"""The ledger: what machines cost, and how much of it nobody wanted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.testing.clouds.shared.billing import Bill, Interval, Ledger

from .account import Account

SECONDS = st.integers(0, 100).map(float)
INTERVALS = st.lists(st.tuples(SECONDS, st.none() | SECONDS), max_size=5)


def bill(launched: float = 0.0, terminated: float | None = None) -> Bill:
    return Bill("i-1", "m7i.large", "us-east-1a", "spot", 3600.0, launched, terminated)


@given(SECONDS, st.none() | SECONDS, INTERVALS)
def test_each_second_is_owned_or_not(launched: float, ended: float | None, alive: list[Interval]):
    one, now = bill(launched, None if ended is None else max(launched, ended)), 100.0
    until = now if one.terminated is None else one.terminated
    owned = [
        second
        for second in range(int(launched), int(until))
        if any(since <= second < (now if end is None else end) for since, end in alive)
    ]
    assert one.unowned_seconds(alive, now) == one.seconds(now) - len(owned)


def test_a_machine_costs_from_its_launch_until_it_is_terminated(account: Account):
    (one,) = account.run()
    account.cloud.advance(1000)
    assert account.cloud.ledger.seconds() == pytest.approx(1000, abs=30)
    account.ec2.terminate_instances(InstanceIds=[one])
    account.cloud.advance(10000)
    assert account.cloud.ledger.seconds() == pytest.approx(1000, abs=30)
    (told,) = account.cloud.ledger.bills
    assert (told.id, told.type, told.market) == (one, "m7i.large", "on-demand")
    assert account.cloud.ledger.cost_usd() == pytest.approx(1000 / 3600 * told.hourly_usd, rel=0.05)


def test_seconds_after_the_owners_death_are_unowned(account: Account):
    born = account.cloud.time()
    one, two = account.run(2)
    account.cloud.advance(100)
    died = account.cloud.time()
    account.cloud.advance(600)
    account.ec2.terminate_instances(InstanceIds=[one, two])
    account.cloud.advance(60)
    ledger = account.cloud.ledger
    assert ledger.unowned_seconds([(born, None)]) == 0
    assert ledger.unowned_seconds([(born, died)]) == pytest.approx(1200, abs=60)
    assert ledger.unowned_seconds([(born, died)], instances=[one]) == pytest.approx(600, abs=30)


def test_a_bill_is_closed_once():
    now = [10.0]
    ledger = Ledger(lambda: now[0])
    ledger.open(bill(launched=5.0))
    ledger.close("i-1")
    now[0] = 20.0
    ledger.close("i-1")
    assert ledger.seconds() == 5.0
