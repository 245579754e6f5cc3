"""What tasks need to use their machine's network is in their environment, unless the user says otherwise."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from outrider import Image, Local, Pool, compute
from outrider.providers.base import EntryPoints, LaunchRequest, Machine

pytestmark = pytest.mark.anyio


class Networked:
    """Local machines on a network that asks for something."""

    name = "networked"
    local = True

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
        async with Local().open(pool, entry_points) as fleet:
            launch = fleet.launch

            async def networked(request: LaunchRequest, count: int) -> Sequence[Machine]:
                env = {"FI_PROVIDER": "efa", "NCCL_SOCKET_IFNAME": "^lo"}
                return [replace(machine, env=env) for machine in await launch(request, count)]

            fleet.launch = networked  # type: ignore[method-assign]
            yield fleet


@compute
def variables() -> tuple[str, str]:
    return os.environ["FI_PROVIDER"], os.environ["NCCL_SOCKET_IFNAME"]


async def test_a_machines_variables_are_its_tasks_and_the_images_win() -> None:
    image = Image(env={"NCCL_SOCKET_IFNAME": "eth1"})
    async with Pool(provider=Networked(), image=image, console="silent") as pool:
        assert await pool.run(variables()) == ("efa", "eth1")
