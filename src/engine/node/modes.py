"""Settings of the process (such as torch's default type) that a task may change; they are restored after the task."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

_GRADIENTS = ("is_grad_enabled", "set_grad_enabled")  # in torch; each thread has its own value of this setting
_TORCH = (  # pairs of functions of torch: the first reads a setting, the second sets it
    ("get_default_dtype", "set_default_dtype"),
    ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),  # the setting is off, "warn" or "error"
    ("get_num_threads", "set_num_threads"),
)

Setting = tuple[Callable[[], Any], Callable[[Any], None]]  # the functions that read and set one setting


class Modes(threading.local):
    """The settings as they were before the body of the task's function began; each thread of tasks has its own record.

    A change before the body, by an import or by ``setup=``, is part of the record and stays. A setting of a module that
    the body imports is not restored.
    """

    def __init__(self, *, alone: bool) -> None:
        """Begin without recorded settings.

        Args:
            alone: the process runs one task at a time; if not, only settings that belong to one thread are restored.
        """
        self._alone = alone
        self._modules = -1  # number of imported modules at the time of the record; -1: no record
        self._argv: list[str] = []
        self._settings: list[Setting] = []
        self._reads: list[Callable[[], Any]] = []
        self._values: list[Any] = []
        self._timer = 0.0, 0.0
        if alone:
            _timers.watch()

    def note(self, *, is_first_call: bool, in_sessions: bool) -> None:
        """Record the settings before a function's body begins.

        They are recorded at the function's first call, and when modules were imported since the last record.

        Args:
            in_sessions: whether a plugin has changed settings that it restores itself at the end. If so, record
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
        """Restore the recorded settings after a task. Takes 0.5 us, or 0.9 us if torch is imported."""
        if self._modules < 0:
            return
        if [read() for read in self._reads] != self._values:
            for (read, change), value in zip(self._settings, self._values, strict=True):
                if read() != value:
                    with suppress(Exception):  # the function belongs to a library, and may raise
                        change(value)
        if not self._alone:
            return
        if sys.argv != self._argv:
            sys.argv = list(self._argv)
        if _timers.are_set:
            _timers.are_set = False
            signal.setitimer(signal.ITIMER_REAL, *self._timer)  # a timer of this task could end a later task


class _Timers:
    """A flag: has Python code set a timer (SIGALRM) since the last check?

    The flag replaces reading the timer from the kernel after each task, which would take 0.2 us.
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
        with suppress(AttributeError):  # torch is partly imported, or another module has its name
            settings += [(getattr(torch, read), getattr(torch, change)) for read, change in names]
    return settings
