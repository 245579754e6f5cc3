"""The end of a `SyncPool` that its user does not close: nothing refers to it any more, or the program ends."""

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
    """Warn, and end the pool in its own thread: this may run in any thread. The program's end waits for that."""
    warnings.warn(
        f"{shown} was dropped without close(), and is ended now: keep a reference to it while it is used, and call "
        "close(), or open it by `with`.",
        ResourceWarning,
        stacklevel=3,
    )

    def over(ended: Future[None]) -> None:
        try:
            ended.result()  # an error is logged, as that of any callback
        finally:
            hold.release()
            thread.stop()
            atexit.unregister(thread.stop)

    atexit.register(thread.stop)
    with suppress(PoolClosed):  # it has ended meanwhile
        thread.submit(pool.__aexit__, None, None, None).add_done_callback(over)


def close_at_exit(reference: weakref.ref[Any]) -> None:
    """Close a pool that is still open when the program ends, unless this is a fork of the program."""
    if (pool := reference()) is not None and os.getpid() == pool._process:
        pool.close()


def kept(pool: Any, future: Future[T]) -> Future[T]:
    """Return the future, which refers to its pool from now on."""
    future.add_done_callback(partial(_do_nothing, pool))
    return future


def _do_nothing(pool: Any, future: Future[Any]) -> None:
    pass
