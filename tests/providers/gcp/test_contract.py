"""Compute Engine's machines keep the contract that every provider keeps: here machines on paper, in the test cloud."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import anyio
import pytest

from outrider import GCP
from outrider.providers.base import EntryPoints, LaunchRequest, Machine
from outrider.testing import provider_contract
from outrider.testing.clouds.gcp.front import GCE
from outrider.testing.clouds.shared.machines import Times

REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
GOOD = Times(boot_s=0.01, stop_s=0.01)
BAD = Times(boot_s=0.01, stop_s=0.01, stale_s=0.5, wavering=True)
LONG = provider_contract.cancelling_at_any_await_leaves_nothing  # a hundred pools: on a good day is enough
SOME = 40  # of so many awaits one is tried for each change; the others by `make nightly`


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("check", "times"),
    [(check, GOOD) for check in provider_contract.CHECKS if check is not LONG]
    + [pytest.param(check, BAD, marks=pytest.mark.nightly) for check in provider_contract.CHECKS if check is not LONG]
    + [pytest.param(LONG, GOOD, marks=pytest.mark.nightly)],
    ids=lambda value: value.__name__ if callable(value) else "on a bad day" if value.wavering else "on a good day",
)
async def test_gcp_fleet_passes_the_contract(
    check: provider_contract.Check, cloud: GCE, gcp: Callable[..., GCP]
) -> None:
    async def alive() -> int:
        return len(cloud.machines("pending", "running", "stopped", "shutting-down"))

    async def kill(machine: Machine) -> None:
        while cloud.machine(machine.id).state == "pending":
            await anyio.sleep(0.01)
        cloud.preempt(machine.id, notice_s=0)

    await check(
        provider_contract.Subject(
            provider=gcp(), request=REQUEST, entry_points=EntryPoints(), alive=alive, kill=kill, within_s=60
        )
    )
    assert await alive() == 0
    assert cloud.firewalls == {}


@pytest.mark.anyio
@pytest.mark.parametrize("times", [GOOD], ids=["on a good day"])
async def test_cancelling_at_some_awaits_leaves_nothing(
    cloud: GCE, gcp: Callable[..., GCP], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_contract, "count", lambda first: count(first, SOME))
    await test_gcp_fleet_passes_the_contract(LONG, cloud, gcp)
