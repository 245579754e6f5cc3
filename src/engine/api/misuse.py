"""Error messages for wrong uses of a pool: in a wrong thread or loop, too early, or on the wrong side of an
operator.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ...providers.shared.option_names import OF_POOL, SAME, closest
from .calls import Callee, pending
from .errors import NotACall, SpecError
from .foreign_names import OF_POOLS
from .pending_base import called_with

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import FrameType

ENDED = "The pool has ended with its block: open another one."
CALLED_OFF = "The pool was closed while it was being opened: open another one."
INHERITED = "The pool is of the process that this one was forked from: open another one here."
NOT_OPEN = "The pool is not open yet: use it inside `async with Pool(...) as pool`, or `with Pool(...) as pool`."
OPEN_FOR_THREADS = "This pool was opened by `with`: use what `with ... as pool` gives, whose verbs wait."


class Runner:
    """The base class of pools. Its operators raise an error with a fix if their left operand is not a call."""

    unusable: str  # why no call can run at present; empty: calls can run

    def check_thread(self) -> None:
        """Refuse an operator in a thread that cannot await the operator's result.

        Raises:
            SpecError
        """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            meant = f": {OF_POOLS[name]}" if name in OF_POOLS else ""
            if not meant and not name.startswith("_"):
                close = closest(name, [each for each in dir(type(self)) if not each.startswith("_")])
                meant = f": did you mean {close!r}?" if close else ""
            raise AttributeError(f"a pool has no {name!r}{meant}", name=name, obj=self)

        def _left_is_no_call(self, left: object) -> NoReturn:
            call = pending(left).code
            raise NotACall(
                f"{call} has returned NotImplemented, which no operator of Python gives: write pool.run({call})"
            )

        def _pool_is_left(self, right: object) -> NoReturn:
            raise NotACall(f"the pool stands on the right: {pending(right).code} >> pool")

        __rrshift__ = __rmatmul__ = __lt__ = _left_is_no_call
        __rshift__ = __matmul__ = __gt__ = _pool_is_left


_TASKS = __name__.replace(".api.misuse", ".node.context")  # a module that is imported only in processes that run tasks


def check_guard() -> None:
    """Refuse to open a pool in a module that a worker is importing, or in a process that multiprocessing has just
    spawned.

    The pool's own workers would import that module, too, and open a pool again, without end.

    Raises:
        SpecError
    """
    tasks, processes = sys.modules.get(_TASKS), sys.modules.get("multiprocessing.process")
    task = None if tasks is None else tasks.current()
    is_loading = task is not None and task.loading
    is_spawned = processes is not None and getattr(processes.current_process(), "_inheriting", False)
    if not (is_loading or is_spawned) or (module := _module_being_imported()) is None:
        return
    importer = "a process that multiprocessing has spawned" if is_spawned else "a worker that loads a task"
    raise SpecError(
        f"{module} opens a pool while it is imported, here by {importer}: that would open a pool for each of them. "
        f'Put those lines of {module} below `if __name__ == "__main__":`, or into a function that your program calls.'
    )


def _module_being_imported() -> str | None:
    """Return the name of the innermost module that is being imported; for the main module of a spawned process, its
    path.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>":
            if name == "__mp_main__":
                return str(frame.f_globals.get("__file__", "the main module"))
            if getattr(frame.f_globals.get("__spec__"), "_initializing", False):
                return name
        frame = frame.f_back
    return None


def check_loop(own: AbstractEventLoop, *, synchronous: bool) -> None:
    """Refuse to use a pool on another event loop than its own, where nothing would wake up a waiter.

    Raises:
        SpecError
    """
    # imported here, because a local pool starts its provider before asyncio is imported
    from asyncio import get_running_loop

    try:
        if get_running_loop() is own:
            return
        problem = "The event loop that runs here is not the one that the pool was opened on"
    except RuntimeError:
        problem = "No event loop runs in this thread (an endpoint of a web service needs `async def`, not `def`)"
    if synchronous:
        raise SpecError(OPEN_FOR_THREADS)
    raise SpecError(
        f"{problem}. Open it by `with Pool(...) as pool` to use it from any thread and loop, or hand the work to its "
        "own: asyncio.run_coroutine_threadsafe(pool.run(call), loop).result()."
    )


_OPTIONS_OF_VERBS = {"run": ("on", "keep"), "submit": ("on", "keep"), "map": ("limit", "ordered", "errors")}
_OF_OTHERS = {
    "chunksize": "cheap items share tasks by themselves, so leave it out",
    "callback": "await the job, or add a callback to what pool.submit returns",
    "error_callback": "await the job, which raises the error",
    "max_workers": "limit= says how many items are under way",
}


def no_option(verb: str, function: str, options: Sequence[str]) -> NotACall:
    """Return the error for an option that a pool's method does not have: it may be an option of the function or the
    pool.
    """
    from .task_options import TaskOptions

    name = options[0]
    known = _OPTIONS_OF_VERBS.get(verb, ())
    has = f"pool.{verb} has no option {name!r}"
    if name in _OF_OTHERS:
        return NotACall(f"{has}: {_OF_OTHERS[name]}.")
    of_function = closest(name, TaskOptions.__annotations__)
    if of_function and (of_function == name or not closest(name, known)):
        call = f"{function}.with_({of_function}=...)"
        return NotACall(f"{has}: it is one of the function: write {call}, or @compute({of_function}=...).")
    if close := closest(name, known):
        return NotACall(f"{has}: did you mean {close!r}?")
    of_pool = [each for each in (name, *SAME.get(name, ())) if each in OF_POOL]
    if of_pool:
        return NotACall(f"{has}: it is one of the pool: Pool({of_pool[0]}=...).")
    return NotACall(f"{has}: it has {', '.join(known) or 'none'}.")


def surplus(verb: str, call: object, more: Sequence[object], options: Mapping[str, object]) -> NotACall:
    """Return the error for calls such as ``pool.run(f, 3)``, in the style of the standard library's executors, or for
    ``options`` that the method does not have.
    """
    if options and not more:
        callee = getattr(getattr(call, "function", call), "__name__", "f")
        return no_option(verb, callee, [*options])
    if not callable(call):
        return NotACall(f"pool.{verb} takes one call: for several, pool.gather(...), or pool.map(function, items)")
    name = getattr(call, "__name__", "f")
    decorate = "" if isinstance(call, Callee) else f", with @compute on {name}"
    return NotACall(
        f"pool.{verb} takes a pending call alone: write pool.{verb}({called_with(name, more, {})}){decorate}"
    )
