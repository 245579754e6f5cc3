"""The standard streams of a thread worker, which runs several tasks: each line belongs to the task that writes it."""

from __future__ import annotations

import io
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from ..wire.messages import Output
from . import context
from .output import STDERR, STDOUT, Lines


class RoutedStreams:
    """The replacements of `sys.stdout` and `sys.stderr` in a thread worker."""

    def __init__(self, send: Callable[[Output], None], on_unfinished: Callable[[], None]) -> None:
        self._streams = {
            "stdout": _Routed(STDOUT, sys.stdout, send, on_unfinished),
            "stderr": _Routed(STDERR, sys.stderr, send, on_unfinished),
        }
        # "stdout" or "stderr" -> (stream that a task has set instead, attempts that ran when this was noticed)
        self._replaced: dict[str, tuple[object, frozenset[int]]] = {}
        for name, stream in self._streams.items():
            self._set(name, stream)

    def finish(self, attempt: int) -> None:
        """Send the beginnings of lines that the attempt has not ended, before its answer."""
        for stream in self._streams.values():
            stream.finish(attempt)

    def send_unfinished(self) -> None:
        """Send the beginnings of unended lines of all attempts, except an attempt that is sending output itself."""
        for stream in self._streams.values():
            stream.send_unfinished()

    def restore(self, running: Collection[int]) -> None:
        """Restore a stream that a task has replaced, once the replacement is closed or the task has surely ended."""
        for name, own in self._streams.items():
            stream = getattr(sys, name)
            if stream is own:
                continue
            if (noted := self._replaced.get(name)) is None or noted[0] is not stream:
                noted = self._replaced[name] = stream, frozenset(running)
            if getattr(stream, "closed", True) or noted[1].isdisjoint(running):
                del self._replaced[name]
                self._set(name, own)

    def _set(self, name: str, stream: _Routed) -> None:
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # libraries restore a redirected stream from this name


class _TaskLines(Lines):
    """The lines that one attempt in a thread worker writes to one stream.

    Acquire ``sending`` before you take lines, and release it when they are sent: this keeps their order.
    """

    def __init__(self, stream: int) -> None:
        super().__init__(stream)
        self.sending = threading.RLock()  # reentrant: a signal handler may print during a print


class _Routed(io.TextIOBase):
    """A standard stream whose lines are sent as output of the attempt that runs in the writing thread."""

    def __init__(
        self, stream: int, of_process: Any, send: Callable[[Output], None], on_unfinished: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._of_process = of_process  # the original stream, used by threads that run no attempt
        self._send = send
        self._on_unfinished = on_unfinished
        self._lines: defaultdict[int, _TaskLines] = defaultdict(lambda: _TaskLines(stream))  # attempt -> its lines

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def buffer(self) -> Any:
        return self._of_process.buffer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream

    def write(self, text: str, /) -> int:
        task = context.current()
        if task is None:
            return int(self._of_process.write(text))
        lines = self._lines[task.attempt]
        with lines.sending:
            for output in lines.feed(task.attempt, text.encode("utf-8", "backslashreplace")):
                self._send(output)
        if lines.holds:
            self._on_unfinished()
        return len(text)

    def flush(self) -> None:
        self._of_process.flush()

    def close(self) -> None:
        """Flush, but do not close: other tasks of this process write to the same stream."""
        self.flush()

    def finish(self, attempt: int) -> None:
        """Send the beginning of a line that the attempt has not ended."""
        if (lines := self._lines.pop(attempt, None)) is not None:
            with lines.sending:
                for output in lines.unfinished():
                    self._send(output)

    def send_unfinished(self) -> None:
        """Send the beginnings of unended lines of all attempts, except an attempt that is sending output itself."""
        for lines in [*self._lines.values()]:
            if lines.sending.acquire(blocking=False):
                try:
                    for output in lines.unfinished():
                        self._send(output)
                finally:
                    lines.sending.release()
