"""What a client keeps for whoever takes its pool over, and what that one makes of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from outrider import SSH, Containers, Local, Nodes, Pool, SpecError
from outrider.engine.api.settings import unique
from outrider.engine.client import adoption
from outrider.engine.client.adoption import AdoptionRecord, RecordedFleet
from outrider.engine.pool_options import AttachOptions
from outrider.engine.transport.ssh import new_key
from outrider.providers.base import (
    Address,
    EntryPoints,
    LaunchRequest,
    Login,
    Machine,
    MachineGone,
    MachineId,
    MachineReachable,
)
from outrider.providers.errors import NoCapacity
from outrider.providers.shared import pool_lock
from outrider.providers.shared.journal import Journal
from outrider.testing.fake_provider import Fake, FakeFleet, Script

pytestmark = pytest.mark.anyio
EAST = {"region": "us-east-1"}
REQUEST = LaunchRequest("key", 2)
MACHINE = Machine(
    MachineId("i-1"),
    Address("10.0.0.1", 22, user="ubuntu"),
    "ssh-ed25519 FIRST",
    private_address="10.0.0.1",
    rotate_host_key=True,
    notices=("aws",),
    lease="/run/outrider/lease",
    hourly_cost=0.5,
    env=MappingProxyType({"FI_PROVIDER": "efa"}),
    facts={"zone": "a"},
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def book(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path / "state")


def begun(book: Journal) -> AdoptionRecord:
    return AdoptionRecord.begin(book, unique("train"), "aws", key=new_key(), pool="p1", lease_s=600.0)


async def left(book: Journal, *machines: Machine) -> AdoptionRecord:
    """A dead client's: its pool is in a place, and nobody has its lock."""
    record = begun(book)
    book.own(record.name, "aws", EAST).close()
    record.has(*machines)
    for machine in machines:
        await record.rotated(machine, ("ssh-ed25519 SECOND", machine.host_key))
    await record.close()
    return record


async def test_what_was_kept_is_adopted(book: Journal) -> None:
    before = await left(book, MACHINE)
    record = AdoptionRecord.adopt(book, "train", "aws")
    assert record.machines == {MACHINE.id: replace(MACHINE, env={"FI_PROVIDER": "efa"})}
    assert record.pinned(MACHINE) == ("ssh-ed25519 SECOND", "ssh-ed25519 FIRST")
    assert record.key is not None
    assert before.key is not None
    assert record.key.export_public_key() == before.key.export_public_key()
    assert record.lease_s == 600.0
    assert record.pool == before.pool  # its nodes know it by that
    assert record.turn != before.turn == ""
    assert {each.standing for each in book.records()} == {"alive"}
    await record.close()


async def test_where_nothing_is_reached_by_ssh_there_is_no_key(book: Journal) -> None:
    """So `outrider ssh` does not take the host of a container for the container."""
    container = replace(MACHINE, host_key="", ssh=False, inside=("podman", "exec", "-i", "c1"), env={})
    before = AdoptionRecord.begin(book, unique("train"), "containers", key=None, pool="p1", lease_s=60.0)
    book.own(before.name, "containers", {"on": "here"}).close()
    before.has(container)
    await before.close()
    assert [each.name for each in (book.pools / before.name).glob("*.key")] == ["takeover.key"]
    assert adoption.machines_kept(book, before.name) is None
    record = AdoptionRecord.adopt(book, "train", "containers")
    assert record.machines == {container.id: container}
    assert record.key is None
    await record.close()


async def test_the_way_behind_a_jump_host_or_a_command_is_kept(book: Journal) -> None:
    login = Login(keys=("/k",), known_hosts=("/a", "/b"), jump="me@login:22")
    machine = replace(MACHINE, address=Address("c0", user="me", command=("srun", "-u")), login=login, env={})
    await left(book, machine)
    record = AdoptionRecord.adopt(book, "train", "aws")
    assert record.machines == {machine.id: machine}
    await record.close()


async def test_a_host_key_is_on_the_disk_before_it_is_in_use(book: Journal) -> None:
    """ADOPTION-1: when `rotated` returns. What comes meanwhile is written once for all."""
    record = begun(book)
    machines = [replace(MACHINE, id=MachineId(f"i-{number}")) for number in range(20)]
    record.has(*machines)
    writes = 0
    keep = record._ownership.keep

    def counted(name: str, text: str) -> None:
        nonlocal writes
        writes += 1
        keep(name, text)

    record._ownership.keep = counted  # type: ignore[method-assign]

    async def rotate(machine: Machine) -> None:
        await record.rotated(machine, (f"new {machine.id}",))
        assert f"new {machine.id}" in (record._ownership.kept(adoption.REST) or "")

    await asyncio.gather(*map(rotate, machines))
    assert writes <= 3
    book.own(record.name, "aws", EAST).close()
    record.lost(machines[0].id)
    await record.close()
    assert '"i-0"' not in (book.pools / record.name / "takeover.key").read_text()


async def test_a_settled_pool_leaves_no_key(book: Journal) -> None:
    record = begun(book)
    record.has(MACHINE)
    await record.close()
    assert list(book.pools.iterdir()) == []


async def test_who_may_not_adopt_is_told_why(book: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"There is no pool 'train' to attach to .* left by dead clients: none"):
        AdoptionRecord.adopt(book, "train", "aws")
    name = (await left(book, MACHINE)).name
    with pytest.raises(SpecError, match=f"left by dead clients: {name}"):
        AdoptionRecord.adopt(book, "trian", "aws")
    with pytest.raises(SpecError, match="machines of aws, not of gcp"):
        AdoptionRecord.adopt(book, "train", "gcp")
    monkeypatch.setattr(pool_lock, "_boot", lambda: "another boot")
    monkeypatch.setattr("socket.gethostname", lambda: "another-computer")
    monkeypatch.setattr(pool_lock, "_file_system", lambda path: "nfs4")  # on a disk, a lock is believed
    with pytest.raises(SpecError, match="which may be alive: attach to it there"):
        AdoptionRecord.adopt(book, "train", "aws")
    assert [each.pool for each in book.records()] == [name]


async def test_pools_of_one_name_are_told_apart(book: Journal) -> None:
    """All that is a pool's is ended by its name: two that shared it would end each other."""
    living = begun(book)
    with pytest.raises(SpecError, match=f"has a living owner: process {os.getpid()} "):
        AdoptionRecord.adopt(book, "train", "aws")
    one = await left(book, MACHINE)
    assert one.name != living.name
    adopted = AdoptionRecord.adopt(book, "train", "aws")
    assert adopted.name == one.name
    await adopted.close()
    two = await left(book, MACHINE)
    with pytest.raises(SpecError, match="Several pools 'train' were left: attach to one of") as several:
        AdoptionRecord.adopt(book, "train", "aws")
    assert one.name in str(several.value)
    adopted = AdoptionRecord.adopt(book, two.name, "aws")
    assert adopted.name == two.name
    await adopted.close()
    await living.close()


async def test_a_pool_without_an_adoption_record_is_for_gc(book: Journal) -> None:
    book.own("train", "aws", EAST).close()
    with pytest.raises(SpecError, match="outrider gc --apply"):
        AdoptionRecord.adopt(book, "train", "aws")
    assert [each.standing for each in book.records()] == ["dead"]  # the lock is free again


# --- the fleet --------------------------------------------------------------------------------------------------------


class Lasting(FakeFleet):
    """Machines of a dead client, of which some still run."""

    lease_s: float | None = None

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        self.lease_s = lease_s
        there = [machine for machine in known if machine.id != "i-gone"]
        self.machines.update({machine.id: machine for machine in there[:most]})
        return list(self.machines.values())


def machine(name: str) -> Machine:
    return replace(MACHINE, id=MachineId(name))


async def adopted(book: Journal, fleet: FakeFleet, *names: str, most: int = 3) -> RecordedFleet:
    await left(book, *map(machine, names))
    return await RecordedFleet.adopt(fleet, AdoptionRecord.adopt(book, "train", "aws"), most, 120.0)


async def test_what_was_left_comes_before_what_is_new(book: Journal) -> None:
    async with asyncio.timeout(60), Fake().open("train", EntryPoints()) as inner:
        lasting = Lasting(inner.provider, "train", inner.tasks)
        fleet = await adopted(book, lasting, "i-1", "i-gone", "i-2")
        assert set(fleet.record.machines) == {"i-1", "i-2"}
        machines = list(await fleet.launch(REQUEST, 3))
        assert [each.id for each in machines] == ["i-1", "i-2"]
        assert lasting.requests == []  # the third one would keep these from being connected to
        machines += await fleet.launch(REQUEST, 1)  # none is adopted any more
        assert set(fleet.record.machines) == {each.id for each in machines}
        await fleet.terminate([MachineId("i-1")])
        lasting.lose(MachineId("i-2"))
        lasting._say(MachineReachable(replace(machines[2], private_address="10.9.9.9")))
        events = fleet.events()
        assert await anext(events) == MachineGone(MachineId("i-2"), "spot interruption")
        await anext(events)
        assert "i-1" not in fleet.record.machines
        assert "i-2" not in fleet.record.machines
        assert fleet.record.machines[machines[2].id].private_address == "10.9.9.9"
        await events.aclose()
        await fleet.record.close()


async def test_the_longest_lease_of_any_machine_is_handed_on(book: Journal) -> None:
    """What each client launches ends by its own lease, and what it was left by that of the one before."""
    async with Fake().open("train", EntryPoints()) as inner:
        lasting = Lasting(inner.provider, "train", inner.tasks)
        await left(book, machine("i-1"))
        for own_s, known_s in ((120.0, 600.0), (900.0, 600.0), (60.0, 900.0)):
            fleet = await RecordedFleet.adopt(lasting, AdoptionRecord.adopt(book, "train", "aws"), 3, own_s)
            assert lasting.lease_s == known_s
            await fleet.record.close()


async def test_a_lease_that_the_version_before_did_not_keep_is_not_known(book: Journal) -> None:
    name = (await left(book, machine("i-1"))).name
    kept = book.pools / name / "takeover.key"
    text = kept.read_text()
    assert '"lease_s": 600.0, ' in text
    kept.write_text(text.replace('"lease_s": 600.0, ', ""))
    async with Fake().open("train", EntryPoints()) as inner:
        lasting = Lasting(inner.provider, "train", inner.tasks)
        fleet = await RecordedFleet.adopt(lasting, AdoptionRecord.adopt(book, "train", "aws"), 3, 120.0)
        assert lasting.lease_s is None
        assert fleet.record.lease_s is None  # of the next client's, too: nobody knows which of them are left
        await fleet.record.close()


async def test_too_many_are_not_kept_and_some_are_better_than_none(book: Journal) -> None:
    async with Fake(Script(failures=(NoCapacity("sold out"),))).open("train", EntryPoints()) as inner:
        fleet = await adopted(book, Lasting(inner.provider, "train", inner.tasks), "i-1", "i-2", most=1)
        assert set(fleet.record.machines) == {"i-1"}
        assert [each.id for each in await fleet.launch(REQUEST, 1)] == ["i-1"]
        await fleet.record.close()
        book.settled(fleet.record.name)
        fleet = await adopted(book, Lasting(inner.provider, "train", inner.tasks), "i-1")
        assert [each.id for each in await fleet.launch(REQUEST, 2)] == ["i-1"]
        with pytest.raises(NoCapacity):
            await fleet.launch(REQUEST, 1)
        await fleet.record.close()


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_what_ends_with_its_client_cannot_be_attached_to() -> None:
    for provider in (Local(), SSH(["host"])):
        with pytest.raises(SpecError, match=f"Machines of {provider.name} end with their client"):
            Pool.attach("train", provider=provider)
    with pytest.raises(SpecError, match="provider takes an instance"):
        Pool.attach("train", provider=Local)  # type: ignore[arg-type]


def test_attaching_takes_what_a_pool_takes() -> None:
    pytest.importorskip("aiobotocore")
    from outrider import AWS

    pool = Pool.attach("train", provider=AWS("us-east-1"), nodes=3, vcpus=4, max_cost=5)
    assert (pool._settings.name, pool._settings.attach, pool._settings.nodes.desired) == ("train", "nodes", 3)
    with pytest.raises(SpecError, match="name takes"):
        Pool.attach("a/b", provider=AWS("us-east-1"))


def test_a_pool_is_attached_to_by_its_full_name_however_long() -> None:
    pytest.importorskip("aiobotocore")
    from outrider import AWS

    longest = "a" * 40
    full = unique(longest)
    Pool(name=longest)
    assert Pool.attach(full, provider=AWS("us-east-1"))._settings.name == full
    with pytest.raises(SpecError, match="up to 40 letters"):
        Pool(name=full)
    with pytest.raises(SpecError, match="up to 47 letters"):
        Pool.attach(full + "a", provider=AWS("us-east-1"))


async def test_the_invariant_falls_without_its_guard(book: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADOPTION-1"""

    async def later(kept: adoption.AdoptionRecord, machine: Machine, keys: tuple[str, ...]) -> None:
        kept._host_keys[machine.id] = keys
        kept._save_later()

    monkeypatch.setattr(adoption.AdoptionRecord, "rotated", later)
    with pytest.raises(AssertionError):
        await test_a_host_key_is_on_the_disk_before_it_is_in_use(book)


@pytest.mark.parametrize(
    ("options", "nodes", "adopted"),
    [
        ({}, 3, ["i-1", "i-2", "i-3"]),
        ({"nodes": 1}, 1, ["i-1"]),
        ({"nodes": Nodes(1, spare=1)}, 1, ["i-1", "i-2"]),
        ({"nodes": 3}, 3, ["i-1", "i-2", "i-3"]),
        ({"nodes": 5}, 5, ["i-1", "i-2", "i-3"]),
    ],
)
async def test_attach_without_a_number_of_nodes_adopts_all(
    book: Journal, options: AttachOptions, nodes: int, adopted: list[str]
) -> None:
    await left(book, *map(machine, ["i-1", "i-gone", "i-2", "i-3"]))
    async with Fake().open("train", EntryPoints()) as inner:
        lasting = Lasting(inner.provider, "train", inner.tasks)
        record = AdoptionRecord.adopt(book, "train", "aws")
        settings = Pool.attach("train", provider=Containers("i", runtime="podman"), **options)._settings
        fleet, changed = await record.around(lasting, settings)
        assert (changed.nodes.desired, changed.nodes.min) == (nodes, nodes)
        assert [each.id for each in fleet.adopted] == adopted
        await record.close()


async def test_attach_to_no_machine_that_is_left_has_one_node(book: Journal) -> None:
    await left(book, machine("i-gone"))
    async with Fake().open("train", EntryPoints()) as inner:
        record = AdoptionRecord.adopt(book, "train", "aws")
        settings = Pool.attach("train", provider=Containers("i", runtime="podman"))._settings
        fleet, changed = await record.around(Lasting(inner.provider, "train", inner.tasks), settings)
        assert (fleet.adopted, changed.nodes.desired) == ([], 1)
        await record.close()
