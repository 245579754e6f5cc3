"""The end of a `SyncPool` that its user does not close: the pool is garbage-collected, or the program ends."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..api.errors import PoolClosed

if TYPE_CHECKING:
    from .loop_thread import LoopThread
    from .signals import ThreadHold

T = TypeVar("T")


def end_dropped(pool: Any, shown: str, thread: LoopThread, hold: ThreadHold) -> None:
    """Warn, and end the pool in the pool's own thread.

    Any thread may call this. If the program ends, it waits until the pool has ended.
    """
    warnings.warn(
        f"{shown} was dropped without close(), and is ended now: keep a reference to it while it is used, and call "
        "close(), or open it by `with`.",
        ResourceWarning,
        stacklevel=3,
    )

    def over(ended: Future[None]) -> None:
        try:
            ended.result()  # raises the error of the pool's end, if any, which `concurrent.futures` then logs
        finally:
            hold.release()
            thread.stop()
            atexit.unregister(thread.stop)

    atexit.register(thread.stop)
    with suppress(PoolClosed):  # the pool has ended in the meantime
        thread.submit(pool.__aexit__, None, None, None).add_done_callback(over)


def close_at_exit(reference: weakref.ref[Any]) -> None:
    """Close a pool that is still open when the program ends, unless this process is a fork of the program."""
    if (pool := reference()) is not None and os.getpid() == pool._process:
        pool.close()


def kept(pool: Any, future: Future[T]) -> Future[T]:
    """Return the future, after making it hold a reference to its pool."""
    future.add_done_callback(partial(_do_nothing, pool))
    return future


def _do_nothing(pool: Any, future: Future[Any]) -> None:
    pass
