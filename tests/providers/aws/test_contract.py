"""EC2's machines keep the contract that every provider keeps: here machines on paper, in the test cloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import anyio
import pytest

from outrider import AWS
from outrider.providers.base import EntryPoints, LaunchRequest, Machine
from outrider.testing import EC2, Behaviour, provider_contract

REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
GOOD = Behaviour(boot_s=0.01, stop_s=0.01, types=("m7i.large",))
BAD = replace(GOOD, stale_s=0.5, wavering=True, throttled=True)
LONG = provider_contract.cancelling_at_any_await_leaves_nothing  # a hundred pools: on a good day is enough
SOME = 9  # of so many awaits one is tried for each change; the others by `make nightly`


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("check", "behaviour"),
    [(check, day) for check in provider_contract.CHECKS if check is not LONG for day in (GOOD, BAD)]
    + [pytest.param(LONG, GOOD, marks=pytest.mark.nightly)],
    ids=lambda value: value.__name__ if callable(value) else "on a bad day" if value.throttled else "on a good day",
)
async def test_aws_fleet_passes_the_contract(
    check: provider_contract.Check, cloud: EC2, aws: Callable[..., AWS]
) -> None:
    async def alive() -> int:
        return len(cloud.instances("pending", "running", "stopping", "stopped", "shutting-down"))

    async def kill(machine: Machine) -> None:
        while cloud.instance(machine.id).state == "pending":
            await anyio.sleep(0.01)
        cloud.interrupt(machine.id, notice_s=0)

    await check(
        provider_contract.Subject(
            provider=aws(), request=REQUEST, entry_points=EntryPoints(), alive=alive, kill=kill, within_s=60
        )
    )
    assert cloud.left() == []


@pytest.mark.anyio
@pytest.mark.parametrize("behaviour", [GOOD], ids=["on a good day"])
async def test_cancelling_at_some_awaits_leaves_nothing(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_contract, "count", lambda first: count(first, SOME))
    await test_aws_fleet_passes_the_contract(LONG, cloud, aws)
