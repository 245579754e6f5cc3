"""Polls a cloud for all machines of a pool in one call. Polls are more frequent while a change is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Never

import anyio

from ..base import Warned
from ..watching import Watching
from . import teardown
from .instance_inventory import InstanceInventory, InventoryChanges, pause_s
from .port import Cloud

SOON_S = 0.25  # seconds from the beginning of an expected change to the next poll


class Poller:
    """Polls the cloud for a pool's machines as long as there are any, and ends machines that the pool does not use."""

    def __init__(
        self, cloud: Cloud, pool: str, instances: InstanceInventory, tell: Callable[[InventoryChanges], None]
    ) -> None:
        self._cloud, self._pool, self._instances, self._tell = cloud, pool, instances, tell
        self._next_at = 0.0
        self._requests = 0  # number of requests since a change was expected
        self._watching = Watching(f"the machines of {pool}")
        self._begun = anyio.Event()
        self._answered = anyio.Event()

    async def run(self) -> Never:
        while True:
            await self._due()
            await self._ask()
            now = anyio.current_time()
            self._next_at = now + self._pause_s()

    def begun(self) -> None:
        """Poll soon, because the pool has begun a change."""
        self._requests = 0
        if not self._watching.failures:
            self._next_at = min(self._next_at, anyio.current_time() + SOON_S)
        self._begun.set()

    async def answer(self) -> None:
        """Wait for the next response of the cloud."""
        await self._answered.wait()

    async def _due(self) -> None:
        """Wait until the next request is due."""
        while True:
            self._begun = anyio.Event()
            left_s = self._next_at - anyio.current_time()
            settled = self._instances.forget_lost(anyio.current_time())
            if settled.settled:
                self._tell(settled)
            if self._instances.idle:
                await self._begun.wait()
                self._next_at = anyio.current_time() + SOON_S
            elif left_s <= 0:
                return
            else:
                with anyio.move_on_after(left_s):
                    await self._begun.wait()

    def _pause_s(self) -> float:
        return (
            self._watching.pause_s
            if self._watching.failures
            else pause_s(busy=self._instances.busy, requests=self._requests)
        )

    async def _ask(self) -> None:
        sent_at = anyio.current_time()
        try:
            # also request machines by id: tags appear later than the machines, and somebody may remove the tags
            views = await self._cloud.describe(self._pool, also=self._instances.machines)
            news = self._instances.full_answer(views, sent_at, anyio.current_time())
            self._tell(news)
            if news.unwanted:
                ended = await teardown.end(self._cloud, news.unwanted)
                self._tell(self._instances.partial_answer(ended, anyio.current_time()))
        except Exception as error:  # noqa: BLE001  WATCH-1: a caller that waits for a change has its own deadline
            self._warn(self._watching.failed(error, anyio.current_time()))
            return
        self._requests += 1
        self._warn(self._watching.succeeded(anyio.current_time()))
        self._answered.set()
        self._answered = anyio.Event()

    def _warn(self, warned: Warned | None) -> None:
        if warned is not None:
            self._tell(InventoryChanges(events=[warned]))
