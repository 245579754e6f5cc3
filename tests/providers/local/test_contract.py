"""Local machines keep the contract that every provider keeps."""

from __future__ import annotations

import os
import signal

import pytest

from outrider.engine.client.opening import ENTRY_POINTS
from outrider.providers.local.provider import Local
from outrider.testing import provider_contract


@pytest.mark.anyio
@pytest.mark.parametrize("as_remote", [False, True], ids=["", "as remote"])
@pytest.mark.parametrize("check", provider_contract.CHECKS, ids=lambda check: check.__name__)
async def test_it_passes_the_contract(check, as_remote, tmp_path, request_, table):
    async def alive():
        return len(table.groups())

    async def kill(machine):
        os.killpg(int(machine.facts["group"]), signal.SIGKILL)

    provider = Local(state=tmp_path, as_remote=as_remote)
    await check(
        provider_contract.Subject(
            provider=provider, request=request_, entry_points=ENTRY_POINTS, alive=alive, kill=kill, within_s=60
        )
    )
