"""Settings of the process that a task may change for itself: they are restored before the next task."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

_GRADIENTS = ("is_grad_enabled", "set_grad_enabled")  # (reads, sets) the setting, which each thread has for itself
_TORCH = (  # functions of the torch module: (reads the setting, sets it)
    ("get_default_dtype", "set_default_dtype"),
    ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),  # levels: off, warnings, errors
    ("get_num_threads", "set_num_threads"),
)

Setting = tuple[Callable[[], Any], Callable[[Any], None]]  # (reads it, sets it)


class Modes(threading.local):
    """The settings as they were before a function's body began, recorded by each thread that runs tasks.

    Changes made earlier, by imports or a setup, are part of the recorded settings and stay. Settings of a module that
    the body itself imports are not restored.
    """

    def __init__(self, *, alone: bool) -> None:
        """Begin without recorded settings.

        Args:
            alone: the process runs one task at a time; if not, only settings that belong to one thread are restored.
        """
        self._alone = alone
        self._modules = -1  # the number of imported modules when the settings were recorded; -1: nothing is recorded
        self._argv: list[str] = []
        self._settings: list[Setting] = []
        self._reads: list[Callable[[], Any]] = []
        self._values: list[Any] = []
        self._timer = 0.0, 0.0
        if alone:
            _timers.watch()

    def note(self, *, is_first_call: bool, in_sessions: bool) -> None:
        """Record the settings before a body begins: at a function's first call, and when modules have been imported.

        Args:
            in_sessions: plugins have open sessions, which may have changed settings and restore them later; record
                nothing.
        """
        if in_sessions:
            self._modules = -1
        elif is_first_call or len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._argv = list(sys.argv)
            self._settings = _settings(alone=self._alone)
            self._reads = [read for read, _ in self._settings]
            self._values = [read() for read in self._reads]
            self._timer = signal.getitimer(signal.ITIMER_REAL)
            _timers.are_set = False

    def restore(self) -> None:
        """Restore the settings after a task. Takes 0.5 us, with torch 0.9 us."""
        if self._modules < 0:
            return
        if [read() for read in self._reads] != self._values:
            for (read, change), value in zip(self._settings, self._values, strict=True):
                if read() != value:
                    with suppress(Exception):  # the setting's function is a library's code, which may raise
                        change(value)
        if not self._alone:
            return
        if sys.argv != self._argv:
            sys.argv = list(self._argv)
        if _timers.are_set:
            _timers.are_set = False
            signal.setitimer(signal.ITIMER_REAL, *self._timer)  # else the task's SIGALRM could end a later task


class _Timers:
    """A flag that a timer was set since the last check.

    Reading the timer from the kernel would take 0.2 us each time.
    """

    are_set = False

    def watch(self) -> None:
        for name in ("alarm", "setitimer"):
            if not hasattr(change := getattr(signal, name), "__wrapped__"):
                setattr(signal, name, self._noticed(change))

    def _noticed(self, change: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(change)
        def changing(*arguments: Any) -> Any:
            self.are_set = True
            return change(*arguments)

        return changing


_timers = _Timers()


def _settings(*, alone: bool) -> list[Setting]:
    settings: list[Setting] = [(sys.gettrace, sys.settrace), (sys.getprofile, sys.setprofile)]
    sockets, logs, torch = (cast("Any", sys.modules.get(name)) for name in ("socket", "logging", "torch"))
    if alone:
        settings.append((gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable()))
        if sockets is not None:
            settings.append((sockets.getdefaulttimeout, sockets.setdefaulttimeout))
        if logs is not None:
            manager = logs.root.manager
            settings.append((lambda: manager.disable, logs.disable))
    if torch is not None:
        names = (_GRADIENTS, *_TORCH) if alone else (_GRADIENTS,)
        with suppress(AttributeError):  # torch is only partly imported, or another module has this name
            settings += [(getattr(torch, read), getattr(torch, change)) for read, change in names]
    return settings
