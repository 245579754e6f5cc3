"""The conversion of a user's exception to a message: the client shows it, or raises it again if it can be pickled.

`add_hint` adds advice to errors that occur only because a task runs on a node: without a terminal, in another folder.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..wire import values
from ..wire.messages import Failed, Value
from . import blobs, exception_pickle

_NO_TERMINAL = "A task has no terminal: run the function here, by its .local(...), to answer and to debug it."


def add_hint(error: BaseException) -> None:
    with suppress(Exception):  # the error's class may raise; the working directory may be deleted
        if hint := _hint(error):
            error.add_note(hint)


def _hint(error: BaseException) -> str:
    match error:
        case FileNotFoundError(filename=str(path)) if not Path(path).is_absolute():
            where = f"The task runs in {Path.cwd()} on its node"
            return f"{where}: send files there by Image(includes=[...]) or pool.push, or give an absolute path."
        case EOFError() if str(error) == "EOF when reading a line":  # raised by input()
            return _NO_TERMINAL
        case _ if type(error).__module__ == "bdb":  # raised by breakpoint()
            return _NO_TERMINAL
        case _:
            return ""


_TEXT_BYTES = 64 * 1024  # maximum length of a traceback: a longer one loses its beginning
_MESSAGE_BYTES = 8 * 1024
_OURS = str(Path(__file__).parents[2])  # folder of the Outrider package: its frames are left out of tracebacks


def failed(
    attempt: int, phase: str, error: BaseException, took_us: int = 0, *, most_bytes: int | None = None
) -> tuple[Failed, list[int]]:
    """Return the answer for an attempt that raised an error, and a list with the descriptor of the answer's blob.

    The list is empty if the answer needs no blob. Never raises.

    Args:
        phase: during what the error was raised, such as "load", "call" or "dump".
        took_us: duration of the function, in microseconds.
        most_bytes: an error whose pickle is larger is pickled without its causes.
    """
    kind = type(error)
    if phase == "call":
        add_hint(error)
    pickled: Value | None
    try:
        data = exception_pickle.dumps(error, causes=phase in {"call", "setup"}, most_bytes=most_bytes)
        pickled, blob = blobs.placed(values.Dumped([data], None, len(data)))
    except BaseException:  # noqa: BLE001 - its __reduce__ is user code
        pickled, blob = None, []
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    text = _traceback_text(kind, error)[-_TEXT_BYTES:]
    return Failed(attempt, phase, name, text_of(error)[:_MESSAGE_BYTES], text, pickled, took_us, _version(kind)), blob


def lacking(attempt: int, story: str) -> Failed:
    """Return the answer for an attempt that failed because the node lacks memory or descriptors."""
    return Failed(attempt, "node", "OSError", story, "", None, 0)


def text_of(error: BaseException) -> str:
    """Return the error's text; characters that UTF-8 cannot encode are escaped. Never raises."""
    try:
        return _clean(str(error))
    except BaseException as broken:  # noqa: BLE001 - its __str__ is user code, and may exit
        return f"<its text cannot be read: {type(broken).__name__}>"


def _traceback_text(kind: type[BaseException], error: BaseException) -> str:
    try:
        trace = traceback.TracebackException(kind, error, _users(error.__traceback__), compact=True)
        _shorten(trace)
        return _clean("".join(trace.format()))
    except Exception as broken:  # noqa: BLE001 - a traceback may read properties of its class
        return f"<its traceback cannot be told: {type(broken).__name__}>\n"


def _shorten(trace: traceback.TracebackException) -> None:
    """Shorten very long texts of an error and its causes, because formatting megabytes takes seconds."""
    left, seen = [trace], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each._str = shortened(each._str, _MESSAGE_BYTES)  # type: ignore[attr-defined]  # exists in Python 3.5 to 3.14
        notes: object = getattr(each, "__notes__", None)  # user code may have set this attribute to any value
        if isinstance(notes, list | tuple):
            each.__notes__ = [shortened(note, _MESSAGE_BYTES) if isinstance(note, str) else note for note in notes]
        left += filter(None, (each.__cause__, each.__context__, *(each.exceptions or ())))


def shortened(text: str, most: int) -> str:
    """Return the text; of a text longer than ``most`` characters, only the beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out here]\n{text[-half:]}"


def _version(kind: type[BaseException]) -> str:
    """Return the version of the package that defines an exception's class; "" if the package has no `__version__`."""
    package = str(kind.__module__).partition(".")[0]
    if package in {"builtins", *sys.stdlib_module_names}:
        return sys.version.partition(" ")[0]
    try:
        return str(getattr(sys.modules.get(package), "__version__", ""))
    except Exception:  # noqa: BLE001 - the package may compute it, and fail
        return ""


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of Outrider that stand before the user's first frame."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
