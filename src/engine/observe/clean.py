"""What tasks print, made fit for the client's terminal: bytes become lines, and nothing in them moves the cursor."""

from __future__ import annotations

import re

# ECMA-48: CSI (ESC [ ... final), string sequences (OSC, DCS, APC, PM, SOS) with their text, two-character escapes; the
# C1 forms of the same. What is left of the control characters goes alone, except tab. SGR (colours) goes too: a task
# that forgets to reset it would colour everybody's lines.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # would turn the rest of the line around
)


def lines(text: bytes | str) -> list[str]:
    """The lines of a piece of output. A line redrawn with carriage returns (a progress bar) is its last state."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    whole = text.split("\n")
    if whole[-1] == "":
        whole.pop()
    return [clean(line) for line in whole]


def clean(line: str) -> str:
    """One line without control sequences."""
    if line.isprintable():
        return line
    line = line.rstrip("\r")
    return _SEQUENCES.sub("", line[line.rfind("\r") + 1 :])


def one_line(text: str) -> str:
    """A cause or a name from elsewhere, for places that have one line."""
    return "; ".join(filter(None, lines(text)))
