"""What a dead client left is taken over: its machines, the pool's means, and nothing that nobody could use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest

from outrider import AWS
from outrider.providers.base import EntryPoints, LaunchRequest, Machine, MachineReachable, Warned
from outrider.providers.cloud import fleet as fleets
from outrider.providers.errors import BadRequest, NotGone
from outrider.providers.shared.journal import Journal
from outrider.testing import EC2
from outrider.testing import aws_faults as faults

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
NOWHERE = EntryPoints()


async def left(provider: AWS, monkeypatch: pytest.MonkeyPatch, count: int) -> Sequence[Machine]:
    """The machines of a pool whose client has died, as they were when it last saw them."""
    with monkeypatch.context() as patched:

        async def nothing(fleet: fleets.CloudFleet) -> None:
            fleet._open.cancel()

        patched.setattr(fleets.CloudFleet, "close", nothing)
        async with provider.open("train", NOWHERE) as fleet:
            await fleet.launch(REQUEST, count)
            reached: list[Machine] = []
            with anyio.fail_after(60):
                async for event in fleet.events():
                    if isinstance(event, MachineReachable):
                        reached.append(event.machine)
                    if len(reached) == count:
                        break
    return reached


async def test_machines_that_run_are_taken_over_and_all_others_end(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    first, second, third = await left(aws(), monkeypatch, 3)
    book = Journal.open(journal_path)
    cloud.interrupt(second.id, notice_s=0)
    with book.own("train", "aws", adopt=True):
        async with aws().open("train", NOWHERE) as fleet:
            never_heard_of = third
            with anyio.fail_after(60):
                while [each.id for each in cloud.instances("running")].count(second.id):
                    await anyio.sleep(0.01)
            assert await fleet.adopt([first, second], 2) == [first]
            with anyio.fail_after(60):
                while {each.id for each in cloud.instances("pending", "running")} != {first.id}:
                    await anyio.sleep(0.01)
            (new,) = await fleet.launch(REQUEST, 1)  # the pool's group and template are there already
            assert new.id not in {first.id, second.id, never_heard_of.id}
            await fleet.terminate([first.id])
            assert [each.id for each in cloud.instances("pending", "running")] == [new.id]
    assert cloud.left() == []
    assert book.records() == []


async def test_a_machine_that_was_never_reached_is_ended(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    from dataclasses import replace

    (machine,) = await left(aws(), monkeypatch, 1)
    with Journal.open(journal_path).own("train", "aws", adopt=True):
        async with aws().open("train", NOWHERE) as fleet:
            assert await fleet.adopt([replace(machine, address=None)], 1) == []
            with anyio.fail_after(60):
                while cloud.instances("pending", "running"):
                    await anyio.sleep(0.01)
    assert cloud.left() == []


async def test_no_more_are_taken_over_than_are_wanted(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    machines = await left(aws(), monkeypatch, 3)
    with Journal.open(journal_path).own("train", "aws", adopt=True):
        async with aws().open("train", NOWHERE) as fleet:
            assert await fleet.adopt(machines, 1) == machines[:1]
            async for event in fleet.events():
                if isinstance(event, Warned):
                    assert event.text == "2 further machines of the pool are ended: nodes=1"
                    break
            with anyio.fail_after(60):
                while [each.id for each in cloud.instances("pending", "running")] != [machines[0].id]:
                    await anyio.sleep(0.01)
    assert cloud.left() == []


@pytest.mark.parametrize("lease_s", [600.0, None])
async def test_a_failed_clean_up_knows_the_lease_of_what_was_taken_over(
    cloud: EC2,
    aws: Callable[..., AWS],
    monkeypatch: pytest.MonkeyPatch,
    journal_path: Path,
    lease_s: float | None,
) -> None:
    (machine,) = await left(aws(), monkeypatch, 1)
    asked: list[float] = []
    patience_s = fleets.patience_s
    monkeypatch.setattr(fleets, "patience_s", lambda lease_s: asked.append(lease_s) or patience_s(lease_s))
    denied = faults.Unauthorized("TerminateInstances")
    with Journal.open(journal_path).own("train", "aws", adopt=True):
        began = time.time()
        with pytest.RaisesGroup(pytest.RaisesExc(NotGone), flatten_subgroups=True, allow_unwrapped=True) as caught:
            async with aws().open("train", NOWHERE) as fleet:
                assert await fleet.adopt([machine], 1, lease_s=lease_s) == [machine]
                cloud.faults.add(denied)
    error: object = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, NotGone)
    assert error.machines == (machine.id,)
    if lease_s is None:
        assert error.by is None
    else:
        assert error.by is not None
        assert began + 660.0 <= error.by <= time.time() + 660.0
    assert asked == [lease_s or 120.0]
    cloud.faults.clear(denied)


async def test_machines_of_another_region_are_not_taken_for_gone(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    (machine,) = await left(aws(), monkeypatch, 1)
    book = Journal.open(journal_path)
    there = AWS(region="eu-west-1", endpoint_url=cloud.endpoint_url)
    with book.own("train", "aws", adopt=True):
        with pytest.RaisesGroup(pytest.RaisesExc(BadRequest, match="train is in us-east-1 http.*, not in eu-west-1")):
            async with there.open("train", NOWHERE) as fleet:
                await fleet.adopt([machine], 1)
        async with aws().open("train", NOWHERE) as fleet:  # nothing was forgotten
            assert await fleet.adopt([machine], 1) == [machine]
    assert cloud.left() == []
    assert book.records() == []


async def test_a_quote_is_the_price_of_what_would_be_asked_for_first(cloud: EC2, aws: Callable[..., AWS]) -> None:
    async with aws().open("train", NOWHERE) as fleet:
        small = await fleet.quote(LaunchRequest("key", 1, vcpus=2, allocation="on-demand"))
        large = await fleet.quote(LaunchRequest("key", 1, vcpus=16, allocation="on-demand"))
        assert small is not None
        assert large is not None
        assert 0 < small < large
        roomy = await fleet.quote(LaunchRequest("key", 1, vcpus=2, allocation="on-demand", disk_gb=4000))
        assert roomy is not None
        assert roomy - small > 0.4
    assert cloud.left() == []
