"""The functions that a pool's nodes know, each for as long as somebody here has it: every map has one of its own."""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..wire import values

if TYPE_CHECKING:
    from ..api.compute import Decorated


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Defined:
    """A function as nodes know it; functions that are pickled alike have one. Calls that are under way hold it."""

    digest: bytes
    code: bytes
    flags: int
    copied: str | None  # its module, where nodes cannot import it: arguments of that module's types are copied too


class Definitions:
    def __init__(self, forget: Callable[[bytes], None]) -> None:
        """``forget`` is given the digest of each large one that nobody has any more, on the loop that runs now."""
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._of: weakref.WeakKeyDictionary[Decorated[Any], Defined] = weakref.WeakKeyDictionary()
        self._alive: weakref.WeakValueDictionary[bytes, Defined] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._of)

    def get(self, function: Decorated[Any]) -> Defined | None:
        return self._of.get(function)

    def add(self, function: Decorated[Any], code: bytes, flags: int, copied: str | None) -> Defined:
        digest = hashlib.blake2b(code, digest_size=16).digest()
        defined = self._alive.get(digest)
        if defined is None:
            self._alive[digest] = defined = Defined(digest, code, flags, copied)
            if len(code) > values.INLINE_BYTES:
                weakref.finalize(defined, self._let_go, digest).atexit = False
        self._of[function] = defined
        return defined

    def clear(self) -> None:
        """Forget all definitions: what functions refer to may have changed, or the pool has ended."""
        self._of.clear()

    def _let_go(self, digest: bytes) -> None:
        """Report to the loop that a definition has gone, from whatever thread noticed it."""
        with suppress(RuntimeError):  # the loop has ended, and the nodes with it
            self._loop.call_soon_threadsafe(self._gone, digest)

    def _gone(self, digest: bytes) -> None:
        if digest not in self._alive:
            self._forget(digest)
