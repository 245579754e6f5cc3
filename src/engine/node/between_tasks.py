"""The work between two tasks of a worker process, so that a task starts as in a new process.

`BetweenTasks` cleans up context variables, the event loop and leftover threads, which `LeftThreads` finds. `Modes`
restores settings of the process, such as torch's default type. `Cuda` checks whether CUDA has failed permanently in
this process, so that the worker must be replaced. Two other modules restore the rest: `output` the standard streams,
`limits` the resource limits.

After some faults of a CUDA kernel, such as a failed assertion or an invalid memory access, the driver returns the same
error for every later CUDA call of the process: only another process can use the GPU again. NVIDIA lists these errors in
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html.

A leftover thread is a daemon thread that the task's own code has started and that still runs at the task's end. Other
threads do not count. A non-daemon thread may continue after its task, like a child process. A thread that a library,
the standard library (executors, progress bars, trackers) or an import has started belongs to the process, not to the
task.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

from . import context

_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *{_PATHS[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")},
    *site.getsitepackages(),
    site.getusersitepackages(),
    str(Path(__file__).parents[2]),  # the folder of the Outrider package
    "<frozen ",
)


class LeftThreads:
    """The daemon threads that the current task's own code has started."""

    def __init__(self, task: CodeType) -> None:
        """Replace `threading.Thread.start` by a function that records the threads which tasks start.

        Args:
            task: the code object of the function that runs each task; a thread that is started during a call of this
                function belongs to the task.
        """
        self._task = task
        self._started: list[threading.Thread] = []
        start = threading.Thread.start

        @functools.wraps(start)
        def start_and_note(thread: threading.Thread) -> None:
            start(thread)
            if thread.daemon and self._is_tasks_own(sys._getframe(1)):
                self._started.append(thread)

        setattr(threading.Thread, "start", start_and_note)  # noqa: B010 - type checkers refuse a plain assignment

    def take(self) -> Sequence[threading.Thread]:
        """Return the recorded threads that still run, and clear the record for the next task."""
        if not self._started:
            return ()
        started, self._started = self._started, []
        return [thread for thread in started if thread.is_alive()]

    def _is_tasks_own(self, caller: FrameType) -> bool:
        if caller.f_code.co_filename.startswith(_LIBRARIES):
            return False
        frame: FrameType | None = caller
        while frame is not None and frame.f_code is not self._task:
            if frame.f_code.co_name == "<module>":
                return False
            frame = frame.f_back
        return frame is not None


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


CUDA_LIBRARY = "libcuda.so.1"
CUDA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # device files of the driver; the second exists on Windows, in WSL
_SUCCESS = 0
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: the check does not break a stream capture of another thread

# Error codes after which CUDA cannot be used in this process. For most of them the CUDA manual requires a new process;
# 214, 220 and 999 are included because the calls in `_answer` cannot cause them.
_PERMANENT_ERRORS = frozenset(
    [
        214,  # CUDA_ERROR_ECC_UNCORRECTABLE
        220,  # CUDA_ERROR_NVLINK_UNCORRECTABLE
        226,  # CUDA_ERROR_CONTAINED
        700,  # CUDA_ERROR_ILLEGAL_ADDRESS
        702,  # CUDA_ERROR_LAUNCH_TIMEOUT
        710,  # CUDA_ERROR_ASSERT
        714,  # CUDA_ERROR_HARDWARE_STACK_ERROR
        715,  # CUDA_ERROR_ILLEGAL_INSTRUCTION
        716,  # CUDA_ERROR_MISALIGNED_ADDRESS
        717,  # CUDA_ERROR_INVALID_ADDRESS_SPACE
        718,  # CUDA_ERROR_INVALID_PC
        719,  # CUDA_ERROR_LAUNCH_FAILED
        721,  # CUDA_ERROR_TENSOR_MEMORY_LEAK
        999,  # CUDA_ERROR_UNKNOWN
    ]
)


class Cuda:
    """A check of the CUDA library that this process has loaded, if any."""

    def __init__(self, *, library: str = CUDA_LIBRARY, drivers: tuple[str, ...] = CUDA_DRIVERS) -> None:
        self._name = library
        self._library: Any = None
        self._exists = any(map(os.path.exists, drivers))

    def has_failed(self) -> bool:
        """Return whether no CUDA call can succeed in this process any more; False if the process does not use CUDA.

        The check takes 15 us on an H200, and 2 us if CUDA is loaded but unused. It does not wait for running kernels.
        """
        if not self._exists:
            return False
        try:
            if self._library is None:  # RTLD_NOLOAD: fails unless the library is already loaded
                self._library = ctypes.CDLL(self._name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return any(self._answer(device) in _PERMANENT_ERRORS for device in self._devices())
        except (OSError, AttributeError):  # the library is not loaded, or is not NVIDIA's
            return False

    def _devices(self) -> Iterator[int]:
        """Yield the numbers of the GPUs on which this process has a primary context (which all CUDA libraries use)."""
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if self._library.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
            return
        for device in range(count.value):
            status = self._library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            if status == _SUCCESS and active.value:
                yield device

    def _answer(self, device: int) -> int:
        """Return the driver's status code for a call that fails only if the GPU's context is broken."""
        context = ctypes.c_void_p()
        if status := self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return int(status)
        try:
            with self._without_capture():
                if status := self._library.cuCtxPushCurrent_v2(context):
                    return int(status)
                try:
                    free, total = ctypes.c_size_t(), ctypes.c_size_t()
                    return int(self._library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
                finally:
                    self._library.cuCtxPopCurrent_v2(ctypes.byref(context))
        finally:
            self._library.cuDevicePrimaryCtxRelease_v2(device)

    @contextmanager
    def _without_capture(self) -> Iterator[None]:
        mode = ctypes.c_int(_RELAXED)
        self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield
        finally:
            self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


_HAS_IMPLICIT_LOOP = sys.version_info < (3, 14)  # before 3.14, `asyncio.get_event_loop()` creates a loop
_NAMED = 3  # number of leftover threads that the message names


class BetweenTasks:
    """A runner of tasks, one after the other; each task starts as in a new process."""

    def __init__(self, task: CodeType, stderr: int) -> None:
        """Prepare this process.

        Args:
            task: the code object of the function that runs each task; a thread that is started during a call of this
                function belongs to the task.
            stderr: a descriptor of stderr that tasks do not redirect.
        """
        self._stderr = stderr
        self._context = context.of_tasks()
        self._threads = LeftThreads(task)
        self.has_threads = False  # whether a thread of an ended task still runs, so that the process must be replaced
        if _HAS_IMPLICIT_LOOP and (asyncio := cast("Any", sys.modules.get("asyncio"))) is not None:
            asyncio.set_event_loop_policy(None)  # the policy inherited by the fork refers to the parent process's loop

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task in a copy of the context, then look for leftover threads and a leftover loop."""
        result = context.run_in_copy(self._context, function, *arguments)
        if (asyncio := sys.modules.get("asyncio")) is not None:
            forget_ended_loop(asyncio)
        # a process with results of `setup=` is not replaced: a new setup costs more than a leftover thread
        if (threads := self._threads.take()) and not context.has_setups():
            self.has_threads = True
            names = ", ".join(thread.name for thread in threads[:_NAMED]) + ", ..." * (len(threads) > _NAMED)
            self._print(
                f"outrider: a daemon thread of this task still runs at its end ({names}): its process is replaced, "
                "which ends the thread. Join it in the function, or start it in setup= to keep it."
            )
        return result

    def _print(self, line: str) -> None:
        try:
            os.write(self._stderr, f"{line}\n".encode(errors="backslashreplace"))
        except OSError:  # the task has closed the descriptor
            pass


def forget_ended_loop(asyncio: Any) -> None:
    """Make `asyncio.get_event_loop()` work in the next task as in a new process.

    Up to Python 3.13, the first `get_event_loop()` in the main thread of a new process creates a loop. After
    `asyncio.run` it fails, and after other code it may return a closed loop. An open current loop is kept.
    """
    if not _HAS_IMPLICIT_LOOP:
        return
    # `_local` is a private attribute of asyncio's policies; uvloop's policy inherits it
    state = getattr(asyncio.get_event_loop_policy(), "_local", None)
    loop = getattr(state, "_loop", None)
    if state is not None and (loop is None or loop.is_closed()):
        state._loop, state._set_called = None, False
