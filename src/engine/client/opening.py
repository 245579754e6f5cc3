"""The first step of opening a pool: its names, and the part of its provider that starts while the rest is imported."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from ..api.settings import unique
from .from_settings import entry_points

if TYPE_CHECKING:
    from ...providers.base import Fleet
    from ..api.settings import Settings


class Opening:
    """A pool that is being opened. ``id`` is unique, ``tag`` is its name at the provider, ``name`` is for people:
    another pool, of any user, may have the same.
    """

    def __init__(self, settings: Settings) -> None:
        self.id = os.urandom(4).hex()
        self.name = settings.name or self.id
        self.tag = self.id if settings.name is None else unique(settings.name)
        self._settings = settings
        alone = len(settings.specs) == 1  # several providers are opened one after the other, by entering
        self._begun = self._open(self.tag) if settings.provider.local and alone else None

    def take(self, tag: str) -> AbstractAsyncContextManager[Fleet]:
        """Return the provider's context, to be entered now. ``tag``: its new or present name at the provider."""
        begun, self._begun = self._begun, None
        return begun or self._open(tag)

    def _open(self, tag: str) -> AbstractAsyncContextManager[Fleet]:
        return self._settings.provider.open(tag, entry_points(self._settings))

    async def drop(self) -> None:
        """End the provider's context, unless `take` has returned it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            import anyio  # when the provider has begun

            with anyio.CancelScope(shield=True), suppress(Exception):  # the caller has an error already
                async with begun:
                    pass
