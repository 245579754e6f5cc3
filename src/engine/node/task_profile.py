"""The profile of a running task: 200 samples per second of the task's thread, and torch's trace if possible.

`StackSpans` converts the samples (a thread's Python frames, at many times) to time spans of function calls, without
I/O.

`begin_torch` starts torch's profiler only if the task has imported torch already: this module never imports torch. The
profiler is used in the mode that records all threads of the process. Its default mode records only the thread that
begins the profiler, and this thread must also end it. Here, the task's thread cannot: it may be anywhere in its code.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, BinaryIO

from ...lazy_named_tuple import NamedTuple
from . import context
from .signal_requests import ProfileRequest

MOST_SPANS = 100_000  # maximum number of spans that are kept; further ones are only counted
DEEPEST_STACK = 200  # of a deeper stack, only the outermost 200 frames are used
_OURS = str(Path(__file__).parents[2]) + "/"  # the folder of the Outrider package
_CALLER = str(Path(__file__).with_name("call.py"))  # the file of `Caller.run`, which calls all code of tasks


class Span(NamedTuple):
    """A call of a function, with begin and end as the samples show them, in nanoseconds of the samples' clock."""

    name: str
    began_ns: int
    ended_ns: int


class StackSpans:
    """The time spans of function calls in one thread, computed from samples of its frames.

    If a span lies within another span, the function of the outer span has made the inner call.
    """

    def __init__(self) -> None:
        self._open: list[tuple[CodeType, int]] = []  # (code, time of first sample) of running calls, outermost first
        self.spans: list[Span] = []
        self.left_out = 0

    def add(self, frame: FrameType | None, at_ns: int) -> None:
        """Add a sample: the thread's innermost frame, None if it runs no Python code, and the time of the sample."""
        codes = frames_of(frame)
        same = 0
        for (code, _), other in zip(self._open, codes, strict=False):
            if code is not other:
                break
            same += 1
        self._end(same, at_ns)
        self._open += [(code, at_ns) for code in codes[same:]]

    def end(self, at_ns: int) -> None:
        """End all open spans, as at the end of a training step, so that no span covers two steps."""
        self._end(0, at_ns)

    def _end(self, keep: int, at_ns: int) -> None:
        while len(self._open) > keep:
            code, began_ns = self._open.pop()
            if len(self.spans) < MOST_SPANS:
                self.spans.append(Span(_function_name(code), began_ns, at_ns))
            else:
                self.left_out += 1


def frames_of(frame: FrameType | None) -> list[CodeType]:
    """Return the code objects of a stack, the outermost first, without Outrider's frames outside of the task."""
    codes = list[CodeType]()
    while frame is not None and frame.f_code.co_filename != _CALLER:
        codes.append(frame.f_code)
        frame = frame.f_back
    while codes and codes[-1].co_filename.startswith(_OURS):
        codes.pop()
    return codes[::-1][:DEEPEST_STACK]


def _function_name(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


class BegunTorch(NamedTuple):
    """The result of `begin_torch`: torch's profiler or None, and the reason for None ("": torch is not imported)."""

    profiler: Any
    problem: str


def begin_torch() -> BegunTorch:
    """Begin torch's profiler, if torch is imported. Never raises."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "profiler") or not hasattr(torch, "optim"):
        return BegunTorch(None, "")  # torch is not imported, or its import is not finished
    try:
        config = _all_threads(torch)
        if config is None:
            return BegunTorch(None, f"torch {torch.__version__} cannot profile all threads of a process: 2.7 can")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities, experimental_config=config)
        profiler.start()
    except Exception as error:  # noqa: BLE001  for example, the task runs a profiler itself
        return BegunTorch(None, f"torch's profiler did not begin: {one_line(error)}")
    return BegunTorch(profiler, "")


def end_torch(profiler: Any, path: Path) -> str:
    """End torch's profiler, and write its trace to ``path``; return why that failed, or ""."""
    try:
        profiler.stop()
        profiler.export_chrome_trace(str(path))
    except Exception as error:  # noqa: BLE001  for example, the task has ended it
        return f"torch's profiler has no trace: {one_line(error)}"
    return ""


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0][:500]


def _all_threads(torch: Any) -> Any:
    config = torch._C._profiler._ExperimentalConfig
    for options in ({"profile_all_threads": True, "trace_only": True}, {"profile_all_threads": True}):
        try:
            return config(**options)
        except TypeError:
            continue
    return None


EVERY_S = 0.005  # interval between samples
TRACE_BYTES = 1 << 30  # maximum size of torch's trace, before compression
PROFILE_BYTES = 64 << 20  # maximum size of a profile, after compression
FORMAT = 1
# kinds of reports that a training step has ended; if a task uses several, only the first in this order counts
KINDS = ("step", "optimizer", "metrics", "should_stop")
_COMPRESSION = 3  # level of gzip: a third of the time of level 6, a result larger by a tenth


class Left(NamedTuple):
    """The result of a profile.

    ``fd``: descriptor of the memory file with the profile, which the receiver must close; -1 without a profile.
    ``problem``: what is missing in the profile, and why; "" if it is complete.
    """

    fd: int
    size_bytes: int
    sha256: str
    problem: str


class TaskProfile:
    """A profile of a task, made by a thread of its own."""

    def __init__(
        self, request: ProfileRequest, thread: int, scratch: Path, over: Callable[[TaskProfile, Left], None]
    ) -> None:
        """Prepare a profile; `begin` starts its thread.

        Args:
            request: what to profile, and for how long.
            thread: the thread of the task, by `threading.get_ident`.
            scratch: path of a temporary file for torch's trace.
            over: called once, by the profile's thread, with the result.
        """
        self.request = request
        self._observed, self._scratch, self._over = thread, scratch, over
        self._spans, self._steps = StackSpans(), Steps(request.skip, request.steps)
        self._problems: list[str] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="outrider-profile")
        self._torch: Any = None
        self._hook: Any = None
        self._until = math.inf
        self._began_ns = self._ended_ns = 0  # 0: not begun, because `request.skip` steps come first

    def begin(self) -> None:
        if self._steps.skipped:
            self._begin_now()
        context.on_profile_step = self.stepped
        self._hook = _optimizer_hook(self.stepped)
        self._thread.start()

    def _begin_now(self) -> None:
        self._torch, problem = begin_torch()
        if problem:
            self._problems.append(problem)
        self._until = time.monotonic() + self.request.seconds
        self._began_ns = time.time_ns()

    def stepped(self, kind: str, number: int | None = None) -> None:
        """Record the end of a training step. ``kind``: one of `KINDS`. ``number``: the step's, if it has one."""
        self._steps.ended(kind, time.time_ns(), number)
        if self._steps.skipped and not self._began_ns:
            self._begin_now()
            self._steps.begin(kind, self._began_ns)
        if self._steps.done:
            self._done.set()

    def task_ended(self, failed: bool = False) -> None:  # noqa: ARG002  callbacks get this argument
        """End the profile, if it still runs, and wait until ``over`` has sent its result."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    # --- in the profile's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        fd, size_bytes, sha256 = -1, 0, ""
        try:
            self._sample()
            self._end()
            if self._began_ns:
                fd, size_bytes = self._written()
                sha256 = _digest(fd, size_bytes)
        except Exception as error:  # noqa: BLE001  the task continues
            self._problems.append(f"it has failed: {one_line(error)}")
        finally:
            self._scratch.unlink(missing_ok=True)
            self._spans = StackSpans()  # frees memory: the task keeps this object until its end
            self._over(self, Left(fd, size_bytes, sha256, "; ".join(self._problems)))

    def _sample(self) -> None:
        steps = 0
        while not self._done.wait(EVERY_S) and time.monotonic() < self._until:
            if self._began_ns:
                ends_ns = self._steps.ends_ns
                if len(ends_ns) != steps and ends_ns:
                    steps = len(ends_ns)
                    self._spans.end(ends_ns[-1])
                self._spans.add(sys._current_frames().get(self._observed), time.time_ns())
        self._done.set()

    def _end(self) -> None:
        self._ended_ns = time.time_ns()
        context.on_profile_step = None
        if self._hook is not None:
            self._hook.remove()
        self._spans.end(self._ended_ns)
        if not self._began_ns:
            self._problems.append(f"the task has not taken the {self.request.skip} steps that were to be skipped")
        if self._torch is not None and (problem := end_torch(self._torch, self._scratch)):
            self._problems.append(problem)
        self._torch = None

    def _written(self) -> tuple[int, int]:
        """Write the profile to a memory file; return (descriptor, size in bytes), or (-1, 0) if it is too large.

        The file is compressed by gzip. It contains a line of JSON (see `_head`), then torch's trace if there is one.
        """
        fd = os.memfd_create("profile", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                self._write(file)
                size_bytes = file.tell()
        except BaseException:
            os.close(fd)
            raise
        if size_bytes <= PROFILE_BYTES:
            return fd, size_bytes
        os.close(fd)
        most = f"{PROFILE_BYTES >> 20} may be sent: take fewer steps"
        self._problems.append(f"it has {size_bytes >> 20} MiB, of which {most}")
        return -1, 0

    def _write(self, file: BinaryIO) -> None:
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed:
            packed.write(self._head())
            with suppress(FileNotFoundError), self._scratch.open("rb") as trace:
                trace_bytes = os.fstat(trace.fileno()).st_size
                if trace_bytes <= TRACE_BYTES:
                    shutil.copyfileobj(trace, packed, 1 << 20)
                else:
                    most = f"{TRACE_BYTES >> 20} may be kept: take fewer steps"
                    self._problems.append(f"torch's trace has {trace_bytes >> 20} MiB, of which {most}")

    def _head(self) -> bytes:
        spans, began_ns = self._spans, self._began_ns
        if spans.left_out:
            self._problems.append(f"{spans.left_out:,} spans of Python functions are left out")
        names = {name: index for index, name in enumerate(dict.fromkeys(span.name for span in spans.spans))}
        python = [[names[each.name], each.began_ns - began_ns, each.ended_ns - each.began_ns] for each in spans.spans]
        fields = {
            "format": FORMAT,
            "began_ns": began_ns,
            "ended_ns": self._ended_ns,
            "steps_ns": self._steps.ends_ns,
            "steps_by": self._steps.kind,
            "names": list(names),
            "python": python,
        }
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


class Steps:
    """The record of the times at which a task's training steps have ended.

    If the task reports steps in several ways, only the first kind in the order of `KINDS` counts.
    A step is the time between two ends; the time before the first end is no step.

    Args:
        skip: number of steps before the profile begins.
        wanted: number of steps to record; 0: no limit.
    """

    def __init__(self, skip: int, wanted: int) -> None:
        self._skip, self._wanted = skip, wanted
        self._ends: dict[str, list[int]] = {}
        self._numbers: dict[str, int | None] = {}
        self.skipped = not skip

    @property
    def kind(self) -> str:
        return next((kind for kind in KINDS if kind in self._ends), "")

    @property
    def ends_ns(self) -> list[int]:
        return self._ends.get(self.kind, [])

    @property
    def done(self) -> bool:
        return self.skipped and bool(self._wanted) and len(self.ends_ns) > self._wanted

    def ended(self, kind: str, at_ns: int, number: int | None = None) -> None:
        """Record the end of a step. If a step with a ``number`` is reported again, only its first report counts."""
        if number is not None and self._numbers.get(kind) == number:
            return
        self._numbers[kind] = number
        self._ends.setdefault(kind, []).append(at_ns)
        if len(self.ends_ns) >= self._skip:
            self.skipped = True

    def begin(self, kind: str, at_ns: int) -> None:
        """Forget the recorded ends of steps; the first step of the profile begins at ``at_ns``."""
        self._ends = {kind: [at_ns]}


def _optimizer_hook(stepped: Callable[[str], None]) -> Any:
    """Let torch call ``stepped`` after each step of an optimizer (the first that steps). Return torch's handle."""
    optimizer = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        return None
    first: list[int] = []

    def hook(taken: object, *_: object) -> None:
        if not first:
            first.append(id(taken))
        if first[0] == id(taken):
            stepped("optimizer")

    return register(hook)


def _digest(fd: int, size_bytes: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while offset < size_bytes:
        piece = os.pread(fd, 1 << 20, offset)
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()
