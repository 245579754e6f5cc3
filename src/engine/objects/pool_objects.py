"""The objects of an open pool: values stored by `Pool.put` and ``keep=True``, on this computer and on nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...providers.shared.threads import in_thread
from ..api.errors import TransferError
from ..api.refs import Ref, Reference
from ..serialization.error_translation import load_large, load_value
from ..serialization.payload import Received, map_shared
from ..serialization.stored_objects import StoredObject, Whereabouts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ...actors.interfaces import NodeId
    from ..serialization.packer import Packer
    from ..serialization.payload import Blob


class Objects:
    """Implements `serialization.stored_objects.Keeps`.

    Not thread-safe: only the thread of the pool's loop may use it.
    """

    def __init__(
        self,
        packer: Callable[[], Packer],
        drop: Callable[[Blob], None],
        recompute_lost: Callable[[Iterable[StoredObject]], Awaitable[None]],
    ) -> None:
        """``packer`` returns the packer, and raises if the pool is not open.

        ``drop`` receives each blob that no call refers to any more. ``recompute_lost`` recomputes
        lost objects, and raises NodeLost if it cannot.
        """
        self._packer, self._drop, self._recompute_lost = packer, drop, recompute_lost
        self._loop = asyncio.get_running_loop()
        self.reference: Callable[[StoredObject], Reference[Any]] = lambda stored: Ref(stored, self)

    async def put(self, value: object) -> Reference[Any]:
        dumped, blob = self._packer().dump(value)
        if blob is None:
            return self.reference(self._small(dumped.data, dumped.sizes, ""))
        await in_thread(blob.snapshot, abandon=True)
        return self.reference(self.keep(Whereabouts(blob.name, dumped.sizes, blob.size_bytes, blob=blob)))

    async def get(self, stored: StoredObject) -> Any:
        self._packer()
        await self._recompute_lost([stored])
        at = stored.at
        while (received := await self._received(at)) is None:
            await self._recompute_lost([stored])
            at = stored.at
        name = at.producer or "pool.put"
        if received.is_long_to_load:
            return await in_thread(load_large, received, name, abandon=True)
        return load_value(received, name)

    async def _received(self, at: Whereabouts) -> Received | None:
        """Return the object's bytes; None: they are lost."""
        if at.small is not None:
            return Received(at.small, at.sizes)
        if at.blob is not None:
            return Received(map_shared(await in_thread(at.blob.share, abandon=True)), at.sizes)
        if (home := at.home) is None:
            return None
        try:
            return await home.fetch(at)
        except ConnectionError:
            at.lose(home)
            return None
        except (OSError, LookupError, RuntimeError) as error:
            story = f"What {at.producer} has returned could not be fetched: {type(error).__name__}: {error}"
            raise TransferError(f"{story}. See whether this computer and the node have memory left.") from error

    def keep(self, at: Whereabouts) -> StoredObject:
        return StoredObject(self, at, self._free)

    def result(self, outcome: Received | StoredObject, made_by: str) -> Reference[Any]:
        if isinstance(outcome, StoredObject):
            return self.reference(outcome)
        return self.reference(self._small(bytes(outcome.data), outcome.sizes, made_by))

    def _small(self, data: bytes, sizes: tuple[int, ...] | None, made_by: str) -> StoredObject:
        return self.keep(Whereabouts("", sizes, len(data), small=data, producer=made_by))

    def _free(self, at: Whereabouts) -> None:
        """Free the bytes of an object without references. Any thread may call this."""
        if at.small is None:
            with suppress(RuntimeError):  # the loop has ended, and with it the nodes
                self._loop.call_soon_threadsafe(self._freed, at)

    def _freed(self, at: Whereabouts) -> None:
        if at.home is not None:
            at.home.let_go(at.kept_as)
        for home, name in at.copies:
            home.forget(name)
        if at.blob is not None:
            self._drop(at.blob)


def home_of(stored: tuple[StoredObject, ...]) -> NodeId | None:
    """Return the node that keeps the most bytes of the objects in a call's arguments; None: no node keeps any."""
    held: dict[NodeId, int] = {}
    for each in stored:
        if (home := each.at.home) is not None:
            held[home.node] = held.get(home.node, 0) + each.at.size_bytes
    return max(held, key=lambda node: held[node]) if held else None
