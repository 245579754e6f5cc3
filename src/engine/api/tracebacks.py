"""Tracebacks as users read them: from their own line on, without frames of this library and of its event loop."""

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
FULL = "OUTRIDER_FULL_TRACEBACKS"  # the environment variable that keeps all frames, to find a defect of ours
_DRIVERS = {"outrider", "anyio", "asyncio", "concurrent", "contextlib", "threading"}
_FRAME = r'( +)File "(.*)", line (\d+), in '


def cut(error: BaseException) -> None:
    """Take the library's frames out of an error's traceback; a bare ``raise`` behind this adds none. Another error than
    a task's or an `OutriderError` keeps all frames if it has none of the user's: it is a defect, which they explain. An
    interrupt, and a cancellation, are no defects: the place where the wait for a call was interrupted is of no
    interest.
    """
    if isinstance(error, GeneratorExit):  # at a program's end, perhaps, when nothing can be imported any more
        return
    from asyncio import CancelledError  # a local pool begins before it is imported

    interrupt = isinstance(error, KeyboardInterrupt | CancelledError)
    if os.environ.get(FULL) or not (interrupt or isinstance(error, Exception)):
        return
    theirs = _users(error.__traceback__)
    is_explained = interrupt or isinstance(error, OutriderError) or remote_traceback(error) is not None
    if theirs is not None or is_explained:
        BaseException.with_traceback(error, theirs)  # past a `__setattr__` of its class, which may be frozen


def causes(error: BaseException) -> list[BaseException]:
    """Return the error, its cause, the cause of that, and so on."""
    chain, seen = [error], {id(error)}
    # Past a property of this name in the error's class.
    while (cause := BaseException.__dict__["__cause__"].__get__(chain[-1])) is not None and id(cause) not in seen:
        chain.append(cause)
        seen.add(id(cause))
    return chain


def remote_traceback(error: BaseException) -> RemoteTraceback | None:
    """Return the last cause of an error that was raised on a node; None for other errors."""
    *before, last = causes(error)
    return last if before and isinstance(last, RemoteTraceback) else None


def cutting(verb: Callable[P, T]) -> Callable[P, T]:
    """Return ``verb`` with a wrapper that cuts the errors that it raises."""

    @wraps(verb)
    def called(*args: P.args, **options: P.kwargs) -> T:
        try:
            return verb(*args, **options)
        except BaseException as error:  # Ctrl-C too, and a notebook's interrupt
            cut(error)
            raise

    return called


def of_pickling(error: BaseException) -> BaseException:
    """Return an error of pickling with the user's frames alone, such as those of a ``__reduce__``."""
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
    """Return a traceback from a node with the lines of source that the node lacks: of notebooks, and of programs whose
    files are only here. Only files that this program itself runs are looked into.
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
    if file == "<string>" and "-c" in sys.orig_argv[:-1]:  # python -c
        lines = sys.orig_argv[sys.orig_argv.index("-c") + 1].splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""
    own = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return linecache.getline(file, number).strip() if file in linecache.cache or file in own else ""
