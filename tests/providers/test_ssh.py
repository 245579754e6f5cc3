"""Hosts one has: how they are written, and how they are lent out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import SSH, Host
from outrider.providers.base import Address, EntryPoints, LaunchRequest, Machine
from outrider.providers.errors import BadRequest, NoCapacity
from outrider.providers.ssh import SSHFleet

names = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
users = st.none() | st.from_regex(r"[a-z_][a-z0-9_-]{0,8}", fullmatch=True)
ports = st.none() | st.integers(1, 65535)
REQUEST = LaunchRequest(client_key="", nodes=2)
PRIVATE = "-----BEGIN PRIVATE KEY-----\n"


@given(names | st.sampled_from(["10.0.0.5", "2001:db8::1"]), users, ports)
def test_a_host_is_read_as_it_is_written(name: str, user: str | None, port: int | None) -> None:
    host = Host(name, port, user)
    assert Host.parse(str(host)) == host
    assert Host.parse(f"ssh://{host}/") == host


@pytest.mark.parametrize("text", ["", "@host", "user@", "host:0", "host:99999", "host:ssh", "[::1", "[::1]x", "a b",
                                  "-oProxyCommand=x", "-l@host"])  # fmt: skip
def test_what_is_no_host_is_refused_as_it_was_written(text: str) -> None:
    with pytest.raises(ValueError, match="SSH"):
        SSH(hosts=[text])


@pytest.mark.parametrize("name", ["gpu1:2222", "ml@gpu1", "ml@2001:db8::1"])
def test_a_hosts_name_is_nothing_else(name: str) -> None:
    with pytest.raises(ValueError, match="the name alone"):
        Host(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hosts": []}, "empty"),
        ({"hosts": "gpu1"}, r"SSH\(hosts=\['gpu1'\]\)"),
        ({"hosts": ["a", "ml@a"]}, "twice"),
        ({"hosts": [3]}, "not 3"),
        ({"hosts": ["a"], "key": "/no/such/key"}, "not a file"),
        ({"hosts": ["a"], "known_hosts": "/no/such/file"}, "there is no file /no/such/file"),
        ({"hosts": ["a"], "config": "/no/such/file"}, "there is no file /no/such/file"),
        ({"hosts": ["a"], "jump": "b:x"}, "not a port"),
        ({"hosts": ["a"], "connect_timeout": 0}, "more than 0"),
        ({"hosts": ["a"], "notices": "aws"}, r"SSH\(notices=\['aws'\]\)"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SSH(**arguments)  # type: ignore[arg-type]


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'known_hosts'"):
        SSH(hosts=["a"], know_hosts="x")  # type: ignore[arg-type]


def test_a_host_takes_from_the_provider_what_it_does_not_say(tmp_path: Path) -> None:
    key, own = tmp_path / "key", tmp_path / "own"
    for path in (key, own):
        path.write_text(PRIVATE)
    provider = SSH(hosts=["a", Host("b", user="root", key=own, jump="there")], user="ml", key=key, jump="here")
    assert [host.user for host in provider.hosts] == ["ml", "root"]
    assert [host.key for host in provider.hosts] == [key, own]
    assert [host.jump for host in provider.hosts] == ["here", "there"]


# --- lending --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(*hosts: str) -> AsyncIterator[SSHFleet]:
    async with SSH(hosts=hosts).open("pool", EntryPoints()) as fleet:
        yield fleet


def hosts_of(machines: object) -> list[str]:
    return [machine.address.host for machine in machines if machine.address]  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_hosts_are_lent_in_the_order_given_and_the_longest_unused_comes_first() -> None:
    async with opened("a", "b", "c") as fleet:
        first = await fleet.launch(REQUEST, 2)
        assert hosts_of(first) == ["a", "b"]
        await fleet.terminate([first[0].id])
        assert hosts_of(await fleet.launch(REQUEST, 2)) == ["c", "a"]


@pytest.mark.anyio
async def test_none_free_is_worth_another_try_while_hosts_are_lent() -> None:
    async with opened("a", "b") as fleet:
        machines = await fleet.launch(REQUEST, 3)
        assert len(machines) == 2
        with pytest.raises(NoCapacity) as told:
            await fleet.launch(REQUEST, 1)
        assert told.value.retry_after_s is not None
        await fleet.terminate([machines[1].id, machines[1].id])
        assert hosts_of(await fleet.launch(REQUEST, 1)) == ["b"]


@pytest.mark.anyio
async def test_an_unusable_host_is_not_lent_again_and_its_cause_is_told() -> None:
    async with opened("a", "b") as fleet:
        machine: Machine = (await fleet.launch(REQUEST, 1))[0]
        fleet.unusable(machine.id, "its disk is full")
        await fleet.terminate([machine.id])
        (other,) = await fleet.launch(REQUEST, 2)
        assert hosts_of([other]) == ["b"]
        needs_both = LaunchRequest(client_key="", nodes=2, least=2)
        with pytest.raises(NoCapacity, match="a: its disk is full") as told:
            await fleet.launch(needs_both, 1)
        assert told.value.retry_after_s is None


@pytest.mark.anyio
async def test_hosts_that_did_not_answer_are_no_pool_until_one_has_been_of_use() -> None:
    both = LaunchRequest(client_key="", nodes=2, least=2)
    async with opened("a", "b") as fleet:
        one, two = await fleet.launch(both, 2)
        fleet.unusable(two.id, "b did not answer within 10 s", for_good=False)
        await fleet.terminate([two.id])
        with pytest.raises(NoCapacity, match="1 of the 2 given hosts cannot be reached: b did not answer") as told:
            await fleet.launch(both, 1)
        assert told.value.retry_after_s is None
        assert "connect_timeout" in told.value.advice
        await fleet.terminate([one.id])  # it was a node: the pool has begun, and is patient from now on
        assert hosts_of(await fleet.launch(both, 2)) == ["b", "a"]


@pytest.mark.anyio
async def test_the_other_hosts_are_a_machines_witnesses_or_who_stands_before_them() -> None:
    given = [Host("a", user="ml"), Host("b", port=2200), Host("c", jump="ops@gate:22,inner")]
    async with SSH(hosts=given).open("pool", EntryPoints()) as fleet:
        machines = await fleet.launch(REQUEST, 3)
    a, b, gate = Address("a", user="ml"), Address("b", 2200), Address("gate", 22, user="ops")
    assert [machine.witnesses for machine in machines] == [(b, gate), (a, gate), (a, b)]


@pytest.mark.anyio
async def test_more_nodes_than_hosts_is_said_at_once() -> None:
    async with opened("a", "b") as fleet:
        with pytest.raises(BadRequest, match=r"needs 3 nodes, and SSH.hosts=.... has 2"):
            await fleet.launch(LaunchRequest(client_key="", nodes=3, least=3), 3)


@pytest.mark.anyio
async def test_the_events_end_with_the_fleet() -> None:
    async with opened("a") as fleet:
        events = fleet.events()
    with anyio.fail_after(60):
        assert [event async for event in events] == []


@pytest.mark.anyio
@pytest.mark.parametrize("wanted", [{"disk_gb": 100}, {"architecture": "arm64"}, {"interconnect": "efa"}])
async def test_hosts_cannot_be_made_to_measure(wanted: dict[str, Any]) -> None:
    async with opened("a") as fleet:
        with pytest.raises(BadRequest, match=f"leave {next(iter(wanted))} out"):
            await fleet.launch(LaunchRequest(client_key="", nodes=1, **wanted), 1)
        assert await fleet.launch(LaunchRequest(client_key="", nodes=1, vcpus=4, memory_gb=16), 1)  # seen when reached
