"""A machine in a cloud's list, as pools and `outrider ps` see it."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.providers.base import MachineId
from outrider.providers.cloud.inventory import InstanceView, ListedMachine, time_of
from outrider.providers.shared.resource_ownership import Thing
from outrider.providers.survey import FoundMachine

WHOSE = Thing("m-1", pool="p", owner="ada@here", launch="t")


def listed(**said: Any) -> ListedMachine:
    return ListedMachine(WHOSE, "running", status="ACTIVE", kind="small", zone="moon", **said)


def test_a_pool_sees_state_and_addresses_and_ps_what_it_costs() -> None:
    machine = listed(
        market="spot", launched_at=10.0, hourly_usd=2.0, until=20.0, public="198.51.100.7", private="10.0.0.7",
        port=2222, reason="code", message="words",
    )  # fmt: skip
    assert machine.view == InstanceView(
        MachineId("m-1"), "running", "198.51.100.7", "10.0.0.7", "code", "words", "t", 2222
    )
    assert machine.summary == FoundMachine(
        "m-1", "small", "spot", "moon", "ACTIVE", 10.0, "198.51.100.7:2222", 2.0, 20.0,
        pool="p", owner="ada@here", launch="t",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ({"public": "198.51.100.7", "private": "10.0.0.7"}, "198.51.100.7"),
        ({"private": "10.0.0.7"}, "10.0.0.7"),
        ({"private": "10.0.0.7", "port": 0}, "10.0.0.7"),  # its port is not mapped yet
        ({"port": 2222}, ""),
    ],
)
def test_the_address_of_a_machine_is_where_it_is_reached(said: dict[str, Any], address: str) -> None:
    assert listed(**said).summary.address == address


def test_a_machine_without_a_time_was_launched_at_an_unknown_one() -> None:
    assert listed().summary.launched_at == 0.0


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:01:00+01:00", 60.0),
        ("1970-01-01T00:01:00.5", 60.5),  # of UTC
        ("yesterday", None),
        (None, None),
    ],
)
def test_the_time_in_a_text(text: object, time: float | None) -> None:
    assert time_of(text) == time
