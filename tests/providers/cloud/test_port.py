"""A cloud that is written to the port alone keeps every promise of a provider."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import anyio
import pytest

from outrider.providers.base import (
    EntryPoints,
    Fleet,
    LaunchRequest,
    LaunchSettled,
    LaunchUnsure,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
)
from outrider.providers.cloud import labels, teardown
from outrider.providers.errors import NoCapacity, ProviderError
from outrider.providers.shared.journal import Journal
from outrider.testing import provider_contract

from .sky import Clouded, Sky, SkyCloud

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
SOME = 9  # of so many awaits one is tried


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(teardown, "AGAIN_S", (0.02,))
    return tmp_path / "state"


@pytest.mark.parametrize("check", provider_contract.CHECKS, ids=lambda check: check.__name__)
async def test_it_passes_the_contract(
    check: provider_contract.Check, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    monkeypatch.setattr(provider_contract, "count", lambda first: count(first, SOME))
    sky = Sky()

    async def alive() -> int:
        return len(sky.alive)

    async def kill(machine: Machine) -> None:
        sky.set(machine.id, "terminated")

    await check(provider_contract.Subject(provider=Clouded(sky), request=REQUEST, alive=alive, kill=kill, within_s=60))
    assert sky.alive == []
    assert Journal.open(state).records() == []


async def test_a_launch_whose_answer_is_lost_is_asked_again_and_made_once() -> None:
    sky = Sky(lost_answers=1)
    async with Clouded(sky).open("pool", EntryPoints()) as fleet:
        with pytest.raises(ProviderError, match="did not answer"):
            await fleet.launch(REQUEST, 2)
        machines = await fleet.launch(REQUEST, 2)
        assert sky.creates == 2
        assert sorted(machine.id for machine in machines) == sorted(sky.alive)
        told = [type(each) for each in await _events(fleet, 2)]
        assert told[:2] == [LaunchUnsure, LaunchSettled]
    assert sky.alive == []


async def test_machines_of_a_lost_answer_are_ended_with_the_pool() -> None:
    sky = Sky(lost_answers=1)
    async with Clouded(sky).open("pool", EntryPoints()) as fleet:
        with pytest.raises(ProviderError, match="did not answer"):
            await fleet.launch(REQUEST, 2)
        assert len(sky.alive) == 2
    assert sky.alive == []


async def test_a_machine_that_ends_is_told_and_an_offer_without_room_is_not_asked_for_again_at_once() -> None:
    sky = Sky(room=2)
    async with Clouded(sky).open("pool", EntryPoints()) as fleet:
        first, _ = await fleet.launch(REQUEST, 2)
        with pytest.raises(NoCapacity, match="the sky is full"):
            await fleet.launch(REQUEST, 1)
        creates = sky.creates
        with pytest.raises(NoCapacity):
            await fleet.launch(REQUEST, 1)
        assert sky.creates == creates  # it just failed: nobody is asked
        sky.set(first.id, "terminated")
        gone = [each for each in await _events(fleet, 2) if isinstance(each, MachineGone)]
        assert [each.id for each in gone] == [first.id]


async def test_a_dead_pools_machines_are_found_by_their_labels_and_ended(state: Path) -> None:
    sky = Sky()
    journal = Journal.open(state)
    async with Clouded(sky).open("mine", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 2)
        async with Clouded(sky).open("other", EntryPoints()) as other:
            (kept,) = await other.launch(REQUEST, 1)
            copy = {**sky.machines[kept.id][1], labels.POOL: "mine", labels.OWNER: "bob@elsewhere"}
            sky.machines[MachineId("copy")] = ("running", copy)  # only the pool's label says that it is the pool's
            swept = await teardown.sweep(SkyCloud(sky), "mine", journal=journal)
            assert len(swept.machines) == 2
            assert sky.alive == [kept.id, "copy"]
    assert sky.alive == ["copy"]


async def test_what_is_created_is_in_the_journal_before_and_after_its_answer(state: Path) -> None:
    sky, journal = Sky(lost_answers=1), Journal.open(state)
    async with Clouded(sky).open("pool", EntryPoints()) as fleet:
        with pytest.raises(ProviderError, match="did not answer"):
            await fleet.launch(REQUEST, 2)
        assert [each.ids for each in journal.records()[0].intents] == [None]
        machines = await fleet.launch(REQUEST, 2)
        assert [each.ids for each in journal.records()[0].intents] == [tuple(machine.id for machine in machines)]
    assert journal.records() == []


async def _events(fleet: Fleet, count: int) -> list[MachineEvent]:
    found: list[MachineEvent] = []
    with anyio.fail_after(60):
        async for event in fleet.events():
            found.append(event)
            if len(found) == count:
                break
    return found
