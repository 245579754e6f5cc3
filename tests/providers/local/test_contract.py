"""Local machines keep the contract that every provider keeps."""

from __future__ import annotations

import os
import signal

import pytest

from outrider.providers import contract


@pytest.mark.anyio
@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_it_passes_the_contract(check, provider, embedding, request_, table):
    async def alive():
        return len(table.groups())

    async def kill(machine):
        os.killpg(int(machine.facts["group"]), signal.SIGKILL)

    await check(
        contract.Subject(provider=provider, request=request_, embedding=embedding, alive=alive, kill=kill, within_s=10)
    )
