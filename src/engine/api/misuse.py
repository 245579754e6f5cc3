"""Error messages for wrong uses of a pool: in a wrong thread or loop, too early, on the wrong side of an operator, or
with the name of a method or option in another library.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ...providers.shared.option_names import OF_POOL, SAME, closest
from .calls import Callee, pending
from .errors import NotACall, SpecError
from .pending_base import called_with

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import FrameType


_CLOUDS = "machines come from Local, SSH, Containers, Slurm, AWS, GCP and other clouds, or from a provider of your own"
_PROGRAM = "a pool lives in your program, which you start with Python"
_COLLECTIONS = "there are no shared collections: return values, and use checkpoints for what has to survive"
MEANING = {
    "function": "did you mean outrider.compute?",
    "remote": "did you mean outrider.compute?",
    "task": "did you mean outrider.compute?",
    "Client": "did you mean outrider.Pool?",
    "Cluster": "did you mean outrider.Pool?",
    "Executor": "did you mean outrider.Pool?",
    "init": "open a pool by `with outrider.Pool(...) as pool`",
    "get": "await the job that pool.submit gives, or ask for its result()",
    "put": "put a large value into a pool by pool.put(value)",
    "Session": "a pool needs no session: open it by `with outrider.Pool(...) as pool`",
    "Options": "options of a function are @compute(timeout=...), those of a pool are Pool's own",
    "Container": "did you mean outrider.Containers? Nodes of outrider.Local are processes of this computer",
    "Storage": "did you mean outrider.Volume?",
    "PipIndex": "Image(pip_indexes=[...]) takes URLs and folders",
    "DockerImage": "nodes that are containers have the image of outrider.Image(container=...)",
    "HealthChecker": "silent nodes are replaced, and tasks report ill ones by a file: see the guide on lost nodes",
    "redirect_output": "did you mean outrider.stdout?",
    "main": _PROGRAM,
    "app": _PROGRAM,
    "is_head": "ask outrider.instance_info().is_head in a task",
    "rank": "ask outrider.instance_info().rank in a task",
    "world_size": "ask outrider.instance_info().world_size in a task",
    "VastAI": "did you mean outrider.Vast?",
    **dict.fromkeys(("Azure", "JarvisLabs", "Kubernetes", "Novita", "Salad", "Scaleway"), _CLOUDS),
    **dict.fromkeys(("TensorDock", "Thunder", "Verda", "Vultr"), _CLOUDS),
    **dict.fromkeys(("dict", "set", "counter", "queue", "lock", "barrier"), _COLLECTIONS),
    **dict.fromkeys(("Dict", "Set", "Counter", "Queue", "Lock", "Barrier"), _COLLECTIONS),
}

_EACH_ITEM = "pool.map(f, items) calls f for each item, and takes any iterable"
OF_POOLS = {  # names of methods of executors, and of pools in other libraries
    "starmap": "write pool.gather(*(f(*each) for each in items)), or pool.map(f, items) with an f of one tuple",
    "starmap_async": "write pool.as_completed(f(*each) for each in items)",
    "imap": _EACH_ITEM,
    "map_async": _EACH_ITEM,
    "imap_unordered": "write pool.map(f, items, ordered=False)",
    "apply": "write pool.run(f(...))",
    "apply_async": "write pool.submit(f(...))",
    "execute": "write pool.run(f(...))",
    "call": "write pool.run(f(...))",
    "scatter": "write pool.put(value)",
    **dict.fromkeys(("shutdown", "terminate", "join", "stop", "kill"), "it ends with its block, or by pool.close()"),
    **dict.fromkeys(("start", "connect", "up", "launch"), "it opens with its block, or by pool.open()"),
    **dict.fromkeys(("scale", "resize", "add_nodes"), "its size is Pool(nodes=(min, max)), by its load"),
}

_SUBMITTED = "hand a call of it to a pool: {0}(...) >> pool waits for the result, pool.submit({0}(...)) does not"
_CHANGED = "its options are changed by {0}.with_(timeout=...)"
_PLAIN = "did you mean {0}.function? {0}.local(...) calls it here"
OF_FUNCTIONS = {
    **dict.fromkeys(("remote", "delay", "spawn", "submit", "apply_async", "send", "enqueue", "start"), _SUBMITTED),
    **dict.fromkeys(("map", "starmap", "for_each", "map_async"), "write pool.map({0}, items)"),
    **dict.fromkeys(("with_options", "override", "configure", "set", "bind", "opts"), _CHANGED),
    **dict.fromkeys(("fn", "func", "raw", "original", "get_raw_f", "run"), _PLAIN),
}


def meant_of_function(function: str, name: str, options: Collection[str], known: Collection[str]) -> str:
    """Return a suggestion for the attribute ``name``, which a `@compute` function does not have.

    The suggestion is one of the ``options``, the equivalent of another library's name, or one of the ``known`` names.
    An empty text means no suggestion.
    """
    option = name.removeprefix("with_").removeprefix("set_")
    if option in options:
        return f"write {function}.with_({option}=...)."
    if name in OF_FUNCTIONS:
        return f"{OF_FUNCTIONS[name].format(function)}."
    close = closest(name, known) or (closest(option, options) if option != name else "")
    return (
        f"did you mean {close!r}?"
        if close in known
        else f"did you mean {function}.with_({close}=...)?"
        if close
        else ""
    )


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
