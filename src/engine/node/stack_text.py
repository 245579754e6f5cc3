"""The conversion of `faulthandler`'s dumps to readable text: the task's thread comes first, without Outrider's frames.

No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...lazy_dataclass import dataclass

MOST_CHARS = 64 * 1024
_HEADING = r"(Current thread|Thread) (0x[0-9a-f]+)"
_FRAME = r'  File "(.*)", line (\d+|\?\?\?) in (.*)'
_NODE = __file__.removesuffix("stack_text.py")
_CALL = f"{_NODE}call.py"  # the file of `Caller.run`, which calls all user code
_OURS = _NODE.removesuffix("engine/node/")
_RUNPY = ("<frozen runpy>", "/runpy.py")


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread's frames as lines of text, the innermost first, or one line that says why they are missing.

    ``number``: the thread's `get_native_id()`; in a process that runs several tasks, its `get_ident()`.
    """

    number: int
    frames: tuple[str, ...]

    @property
    def is_task(self) -> bool:
        return any(_file(frame) == _CALL for frame in self.frames)

    @property
    def is_ours(self) -> bool:
        """Return whether the thread belongs to the worker itself and runs no task."""
        return not self.is_task and any(_file(frame).startswith(_NODE) for frame in self.frames)

    @property
    def users(self) -> tuple[str, ...]:
        """Return the frames without those of Outrider that have called the user's code."""
        files = [_file(frame) for frame in self.frames]
        end = files.index(_CALL) if _CALL in files else len(files)
        while self.is_task and end and (files[end - 1].startswith(_OURS) or files[end - 1].endswith(_RUNPY)):
            end -= 1
        return self.frames[:end]


def of_one(number: int, dump: str) -> list[Thread]:
    """Convert the dump of a single thread to a list with this thread; [] if the thread runs no Python."""
    frames = [line for line in dump.splitlines() if re.match(_FRAME, line) or line == "  ..."]
    return [Thread(number, tuple(frames))] if frames else []


def without_stack(number: int, why: str) -> Thread:
    return Thread(number, (f"  (no stack: {why})",))


def parsed(dump: str) -> list[Thread]:
    """Return the threads in a dump of `faulthandler`; lines other than headings of threads and frames are ignored."""
    threads: list[tuple[int, list[str]]] = []
    for line in dump.splitlines():
        if heading := re.match(_HEADING, line):
            threads.append((int(heading[2], 16), []))
        elif threads and (re.match(_FRAME, line) or line == "  ..."):
            threads[-1][1].append(line)
    return [Thread(number, tuple(frames)) for number, frames in threads]


def of_process(threads: Sequence[Thread]) -> str:
    """Return the stacks of a process that runs one task (or was forked by the task), the task's thread first."""
    shown = sorted((each for each in threads if not each.is_ours), key=lambda each: not each.is_task)
    return "\n".join(
        "\n".join(
            (*(() if index == 0 else (f"thread {each.number}:",)), *(each.users or ("  (in Outrider's own code)",)))
        )
        for index, each in enumerate(shown)
    )


def of_thread(threads: Sequence[Thread], number: int) -> str:
    """Return the stack of a task that runs in the thread ``number`` of a process with several tasks."""
    for each in threads:
        if each.number == number:
            return "\n".join(each.users)
    return ""


def bounded(text: str, most: int = MOST_CHARS) -> str:
    """Return at most ``most`` characters of a text; a shortened text ends with the number of missing lines."""
    if len(text) <= most:
        return text
    kept = text[: most - 40].rpartition("\n")[0] or text[: most - 40]
    left = text.count("\n") - kept.count("\n")
    return f"{kept}\n... and {left} more lines"


def _file(frame: str) -> str:
    match = re.match(_FRAME, frame)
    return "" if match is None else match[1]
