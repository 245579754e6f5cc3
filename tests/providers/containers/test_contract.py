"""The checks of every provider, with containers of Podman."""

from __future__ import annotations

import pytest

from outrider import Containers
from outrider.providers.base import LaunchRequest, Machine
from outrider.testing import provider_contract

from .podman import IMAGE, USR, Podman

pytestmark = pytest.mark.anyio
LONG = {"cancelling_at_any_await_leaves_nothing"}


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[pytest.mark.nightly] if check.__name__ in LONG else [])
        for check in provider_contract.CHECKS
    ],
    ids=lambda check: check.__name__,
)
async def test_containers_pass(check: provider_contract.Check, containers: Podman) -> None:
    async def alive() -> int:
        return len(containers.names)

    async def kill(machine: Machine) -> None:
        containers("kill", "--signal=KILL", machine.id)

    await check(
        provider_contract.Subject(
            provider=Containers(IMAGE, runtime="podman", network=False, volumes=[USR]),
            alive=alive,
            kill=kill,
            request=LaunchRequest(client_key="", nodes=2),
            within_s=120.0,
        )
    )
