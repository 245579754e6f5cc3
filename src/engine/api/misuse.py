"""Words for a pool that is used where it cannot work: from elsewhere, too early, on the wrong side of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from .calls import Callee, pending
from .errors import NotACall, SpecError
from .pending_base import called_with

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

ENDED = "The pool has ended with its block: open another one."
CALLED_OFF = "The pool was closed while it was being opened: open another one."
INHERITED = "The pool is of the process that this one was forked from: open another one here."
NOT_OPEN = "The pool is not open yet: use it inside `async with Pool(...) as pool`, or `with Pool(...) as pool`."
OPEN_FOR_THREADS = "This pool was opened by `with`: use what `with ... as pool` gives, whose verbs wait."


class Runner:
    """The base of pools: it says what was meant where another thing than a call stands on an operator's left side."""

    unusable: str  # why no call can run now; empty: it can

    if not TYPE_CHECKING:

        def _left_is_no_call(self, left: object) -> NoReturn:
            call = pending(left).code
            raise NotACall(
                f"{call} has returned NotImplemented, which no operator of Python gives: write pool.run({call})"
            )

        def _pool_is_left(self, right: object) -> NoReturn:
            raise NotACall(f"the pool stands on the right: {pending(right).code} >> pool")

        __rrshift__ = __rmatmul__ = __lt__ = _left_is_no_call
        __rshift__ = __matmul__ = __gt__ = _pool_is_left


def check_loop(own: AbstractEventLoop, *, synchronous: bool) -> None:
    """Refuse to use a pool on another event loop than its own: nothing would wake up whoever waits there.

    Raises:
        SpecError
    """
    from asyncio import get_running_loop  # a local pool begins before it is imported

    try:
        if get_running_loop() is own:
            return
        found = "The event loop that runs here is not the one that the pool was opened on"
    except RuntimeError:
        found = "No event loop runs in this thread"
    if synchronous:
        raise SpecError(OPEN_FOR_THREADS)
    raise SpecError(
        f"{found}. Open it by `with Pool(...) as pool` to use it from any thread and loop, or hand the work to its "
        "own: asyncio.run_coroutine_threadsafe(pool.run(call), loop).result()."
    )


def surplus(verb: str, call: object, more: Sequence[object]) -> NotACall:
    """Return the error for ``pool.run(f, 3)``, as an executor of the standard library is called."""
    if not callable(call):
        return NotACall(f"pool.{verb} takes one call: for several, pool.gather(...), or pool.map(function, items)")
    name = getattr(call, "__name__", "f")
    decorate = "" if isinstance(call, Callee) else f", with @compute on {name}"
    return NotACall(
        f"pool.{verb} takes a pending call alone: write pool.{verb}({called_with(name, more, {})}){decorate}"
    )
