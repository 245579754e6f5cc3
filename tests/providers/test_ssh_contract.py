"""Hosts of one's own keep the contract of every provider: a machine exists as long as a pool has it on loan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outrider.providers.base import EntryPoints, Machine
from outrider.providers.ssh import SSH, Host, SSHFleet
from outrider.testing import provider_contract

pytestmark = pytest.mark.anyio


class Lender:
    """An `SSH` whose loans are counted."""

    name = "ssh"
    local = False

    def __init__(self) -> None:
        self.inner = SSH(hosts=[Host(f"gpu{n}", host_key=f"ssh-ed25519 KEY{n}") for n in range(4)])
        self.open_fleets: list[SSHFleet] = []

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[SSHFleet]:
        async with self.inner.open(pool, entry_points) as fleet:
            self.open_fleets.append(fleet)
            yield fleet

    async def on_loan(self) -> int:
        return sum(len(fleet._lent) for fleet in self.open_fleets)


@pytest.mark.parametrize("check", provider_contract.CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: provider_contract.Check) -> None:
    async def nobody_hears_of_it(machine: Machine) -> None:
        """A host loses its power."""

    lender = Lender()
    await check(
        provider_contract.Subject(
            provider=lender,
            alive=lender.on_loan,
            kill=nobody_hears_of_it,
            reports_ends=False,
        )
    )
