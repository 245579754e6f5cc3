"""The first step of opening a pool: chooses the pool's names, and starts a local provider while the other modules are
being imported.
"""

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
    """A pool that is being opened.

    ``id`` is unique. ``tag`` is the pool's name at the provider. ``name`` is for people; other pools, also of other
    users, may have the same ``name``.
    """

    def __init__(self, settings: Settings) -> None:
        self.id = os.urandom(4).hex()
        self.name = settings.name or self.id
        self.tag = self.id if settings.name is None else unique(settings.name)
        self._settings = settings
        # only a single provider is opened here; several providers are opened later, one after the other
        alone = len(settings.specs) == 1
        self._begun = self._open(self.tag) if settings.provider.local and alone else None

    def take(self, tag: str) -> AbstractAsyncContextManager[Fleet]:
        """Return the provider's context, which the caller must enter now. ``tag``: the pool's name at the provider."""
        begun, self._begun = self._begun, None
        return begun or self._open(tag)

    def _open(self, tag: str) -> AbstractAsyncContextManager[Fleet]:
        return self._settings.provider.open(tag, entry_points(self._settings))

    async def drop(self) -> None:
        """End the provider's context, unless `take` has returned it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            import anyio  # imported here, because the provider's start comes before slow imports

            with anyio.CancelScope(shield=True), suppress(Exception):  # the caller raises another error already
                async with begun:
                    pass
