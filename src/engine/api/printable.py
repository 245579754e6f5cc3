"""Make text from elsewhere safe for the client's terminal: nothing in it moves the cursor or hides text.

The output of tasks comes as bytes and goes through `lines`. All other text from hosts reaches people in an event or in
an error of Outrider's, which clean their fields with `plain` and `all_plain`. Errors of libraries, which become causes
of ours, go through `plainly` where they are caught.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

# ECMA-48: CSI (ESC [ ... final), string sequences (OSC, DCS, APC, PM, SOS) with their text, two-character escapes; the
# C1 forms of the same; then single control characters, except tab. Colours (SGR) go too: a task that forgets to reset
# them would colour everybody's lines.
_SEQUENCES = (  # compiled, and kept, by `re` at its first use: every worker imports this, and few need it
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # Bidi_Control: would turn the rest of the line around
)


def lines(text: bytes | str) -> list[str]:
    """The lines of a piece of output. Of a line redrawn with carriage returns (a progress bar), the last state."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    whole = text.split("\n")
    if whole[-1] == "":
        whole.pop()
    return [clean(line) for line in whole]


def clean(line: str) -> str:
    if line.isprintable():
        return line
    line = line.rstrip("\r")
    return re.sub(_SEQUENCES, "", line[line.rfind("\r") + 1 :])


def one_line(text: str) -> str:
    return "; ".join(filter(None, lines(text)))


def plain(text: str) -> str:
    """Text of several lines without control sequences, and control characters other than newline and tab."""
    if text.isprintable():
        return text
    return "\n".join(re.sub(_SEQUENCES, "", line) for line in text.replace("\r\n", "\n").split("\n"))


def plainly(error: E) -> E:
    """Clean an error of a library, and all errors that it came from, in place: causes are printed too."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
        _make_plain(each)
    return error


def _make_plain(error: BaseException) -> None:
    for name in ("args", "reason", "strerror", "filename", "msg", "text", "__notes__"):  # attributes that are printed
        with suppress(Exception):  # a class may raise anything here, such as one from a pickle
            fact = getattr(error, name, None)
            if (cleaned := all_plain(fact)) != fact:
                setattr(error, name, cleaned)


def all_plain(value: Any) -> Any:
    """Clean a field of an error or event: a text, or texts in a list, tuple or dict; other values stay as they are."""
    if isinstance(value, str):
        return plain(value) if type(value) is str else value  # subclasses, such as enums, are ours
    if type(value) in (list, tuple):
        return type(value)(map(all_plain, value))
    if type(value) is dict:
        return {all_plain(key): all_plain(each) for key, each in value.items()}
    return value


def sentence(value: object) -> str:
    """Return the text of an error for use within a message: without its full stop; if it is empty, the error's type."""
    return str(value).strip().rstrip(".") or type(value).__name__
