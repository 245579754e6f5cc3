"""Settings of the process that a task may change for itself alone: they are restored for the next task."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

_GRADIENTS = ("is_grad_enabled", "set_grad_enabled")  # of a thread
_TORCH = (  # (how torch reads it, how it is set): functions of its top level
    ("get_default_dtype", "set_default_dtype"),
    ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),  # off, warnings, errors
    ("get_num_threads", "set_num_threads"),
)

Setting = tuple[Callable[[], Any], Callable[[Any], None]]  # reads it, sets it


class Modes(threading.local):
    """The settings before a function's body began, noted by each thread that runs tasks.

    Changes by earlier imports or a setup belong to them and stay. A module that a body imports has none yet.
    """

    def __init__(self, *, alone: bool) -> None:
        """``alone``: the process runs one task at a time. Where threads share one, only their own settings count."""
        self._alone = alone
        self._modules = -1  # the number of imported modules when the settings were noted
        self._argv: list[str] = []
        self._settings: list[Setting] = []
        self._reads: list[Callable[[], Any]] = []
        self._values: list[Any] = []
        self._timer = 0.0, 0.0
        if alone:
            _timers.watch()

    def note(self, *, is_first_call: bool, in_sessions: bool) -> None:
        """Note the settings before a body begins: at a function's first call, and when modules have been imported.

        ``in_sessions``: plugins have sessions, which may have changed settings and restore them later; then note none.
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
        """Restore the settings after a task. It takes 0.5 us, with torch 0.9 us."""
        if self._modules < 0:
            return
        if [read() for read in self._reads] != self._values:
            for (read, change), value in zip(self._settings, self._values, strict=True):
                if read() != value:
                    with suppress(Exception):  # a library's own code
                        change(value)
        if not self._alone:
            return
        if sys.argv != self._argv:
            sys.argv = list(self._argv)
        if _timers.are_set:
            _timers.are_set = False
            signal.setitimer(signal.ITIMER_REAL, *self._timer)  # the task's SIGALRM would end a later task


class _Timers:
    """A mark that a timer was set since the last check. A read from the kernel would take 0.2 us each time."""

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
        with suppress(AttributeError):  # a torch that is half imported, or another module of the name
            settings += [(getattr(torch, read), getattr(torch, change)) for read, change in names]
    return settings
