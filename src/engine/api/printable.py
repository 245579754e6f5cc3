"""Removal of control sequences from text of other computers, so that it cannot move the terminal's cursor or hide text.

The output of tasks arrives as bytes and is cleaned by `lines`. All other text from hosts reaches people in an event or
an error of Outrider, whose fields are cleaned by `plain` and `all_plain`. Errors of libraries that become causes of
Outrider's errors are cleaned by `plainly` where they are caught.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

# This pattern matches ECMA-48 sequences: CSI (ESC [ ... final), string sequences (OSC, DCS, APC, PM, SOS) with their
# text,
# two-character escapes, the C1 forms of these, and single control characters except tab. Colours (SGR) are removed,
# too: a
# task that does not reset its colour would colour all following lines.
# `re` compiles and caches the pattern at its first use: every worker imports this module, and few need the pattern
_SEQUENCES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
    # Bidi_Control characters, which would reverse the rest of the line
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def lines(text: bytes | str) -> list[str]:
    """Return the lines of a piece of output.

    If a line is redrawn with carriage returns, as progress bars do, return only its last state.
    """
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
    """Return text of several lines without control sequences, and without control characters other than newline and
    tab.
    """
    if text.isprintable():
        return text
    return "\n".join(re.sub(_SEQUENCES, "", line) for line in text.replace("\r\n", "\n").split("\n"))


def plainly(error: E) -> E:
    """Clean an error of a library in place, with all its causes, because causes are printed, too."""
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
        with suppress(Exception):  # the error's class may raise anything here; it may come from a pickle
            fact = getattr(error, name, None)
            if (cleaned := all_plain(fact)) != fact:
                setattr(error, name, cleaned)


def all_plain(value: Any) -> Any:
    """Clean a field of an error or event: a string, or strings in a list, tuple or dict.

    Other values are returned as they are.
    """
    if isinstance(value, str):
        return plain(value) if type(value) is str else value  # subclasses of str, such as enums, are Outrider's own
    if type(value) in (list, tuple):
        return type(value)(map(all_plain, value))
    if type(value) is dict:
        return {all_plain(key): all_plain(each) for key, each in value.items()}
    return value


def sentence(value: object) -> str:
    """Return an error's text for use within a message, without its full stop; if the text is empty, the error's
    type.
    """
    return str(value).strip().rstrip(".") or type(value).__name__
