"""The conversion of samples (a thread's Python frames, at many times) to time spans of function calls. No I/O."""

from __future__ import annotations

from pathlib import Path
from types import CodeType, FrameType

from ...lazy_named_tuple import NamedTuple

MOST = 100_000  # maximum number of spans that are kept; further ones are only counted
DEEPEST = 200  # of a deeper stack, only the outermost 200 frames are used
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
            if len(self.spans) < MOST:
                self.spans.append(Span(_name(code), began_ns, at_ns))
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
    return codes[::-1][:DEEPEST]


def _name(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"
