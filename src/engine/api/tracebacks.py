"""Tracebacks for users: they start at the user's own line, without frames of this library and of its event loop."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Collection
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from .errors import OutriderError, RemoteTraceback

P = ParamSpec("P")
T = TypeVar("T")
FULL = "OUTRIDER_FULL_TRACEBACKS"  # environment variable that keeps all frames, for debugging Outrider itself
_DRIVERS = {"outrider", "anyio", "asyncio", "concurrent", "contextlib", "threading"}
_FRAME = r'( +)File "(.*)", line (\d+), in '


def cut(error: BaseException) -> None:
    """Remove the library's frames from an error's traceback; a bare ``raise`` after this adds none.

    An error that has no frame of the user's code keeps all frames, as it is probably a bug of Outrider. Errors of tasks
    and `OutriderError` are no such bugs and are always cut. Interrupts and cancellations are always cut too, because it
    does not matter where the wait for a call was interrupted.
    """
    if isinstance(error, GeneratorExit):  # may be raised at the end of the program, when imports no longer work
        return
    # imported here, because a local pool starts its provider before asyncio is imported
    from asyncio import CancelledError

    interrupt = isinstance(error, KeyboardInterrupt | CancelledError)
    if os.environ.get(FULL) or not (interrupt or isinstance(error, Exception)):
        return
    theirs = _users(error.__traceback__)
    is_explained = interrupt or isinstance(error, OutriderError) or remote_traceback(error) is not None
    if theirs is not None or is_explained:
        # avoids the `__setattr__` of the error's class, which may be frozen
        BaseException.with_traceback(error, theirs)


def causes(error: BaseException) -> list[BaseException]:
    """Return the error, its cause, the cause of that cause, and so on."""
    chain, seen = [error], {id(error)}
    # This avoids a property named `__cause__` in the error's class.
    while (cause := BaseException.__dict__["__cause__"].__get__(chain[-1])) is not None and id(cause) not in seen:
        chain.append(cause)
        seen.add(id(cause))
    return chain


def remote_traceback(error: BaseException) -> RemoteTraceback | None:
    """Return the last cause of an error that was raised on a node; None for other errors."""
    *before, last = causes(error)
    return last if before and isinstance(last, RemoteTraceback) else None


def cutting(verb: Callable[P, T]) -> Callable[P, T]:
    """Return ``verb``, wrapped to cut the tracebacks of the errors that it raises."""

    @wraps(verb)
    def called(*args: P.args, **options: P.kwargs) -> T:
        try:
            return verb(*args, **options)
        except BaseException as error:  # BaseException, to include Ctrl-C and a notebook's interrupt
            cut(error)
            raise

    return called


def of_pickling(error: BaseException) -> BaseException:
    """Return a pickling error with only the user's frames, such as those of a ``__reduce__``."""
    if not os.environ.get(FULL):
        error.__traceback__ = _users(error.__traceback__, _DRIVERS | {"cloudpickle"})
    return error


def _users(trace: TracebackType | None, others: Collection[str] = _DRIVERS) -> TracebackType | None:
    kept = []
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in others:
            kept.append(trace)
        trace = trace.tb_next
    chain = None
    for each in reversed(kept):
        chain = TracebackType(chain, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return chain


def with_source_lines(text: str) -> str:
    """Return a traceback from a node, with source lines added that the node lacks: lines of notebooks, and of programs
    whose files are only on this computer. Only files that this program itself runs are read.
    """
    lines = text.splitlines()
    shown: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        shown.append(line)
        if (match := re.match(_FRAME, line)) and not following.startswith(f"{match[1]}  "):
            source = _source_line(match[2], int(match[3]))
            shown += [f"{match[1]}  {source}"] if source else []
    return "\n".join(shown)


def _source_line(file: str, number: int) -> str:
    if file == "<string>" and "-c" in sys.orig_argv[:-1]:  # the program was started by python -c
        lines = sys.orig_argv[sys.orig_argv.index("-c") + 1].splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""
    own = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return linecache.getline(file, number).strip() if file in linecache.cache or file in own else ""
