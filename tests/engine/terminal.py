"""A terminal for programs that tests run, and what is to be seen on it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress


def on_a_terminal(program: str, look: Callable[[str], object] = lambda seen: None) -> str:
    """What a program prints when stdout and stderr are a terminal. ``look`` is called whenever more of it is there."""
    ours, its = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=its, stdout=its, stderr=its, env=environment
    ) as process:
        os.close(its)
        seen = b""
        with suppress(OSError):  # EIO: the last writer is gone
            while piece := os.read(ours, 65536):
                seen += piece
                look(seen.decode(errors="replace"))
        assert process.wait(60) == 0, seen.decode(errors="replace")
    os.close(ours)
    return seen.decode()


def screen(seen: str) -> list[str]:
    """What stands on an endless terminal after these characters, as far as rich's live display uses one."""
    rows, row, column = [""], 0, 0
    for control, char in re.findall(r"\x1b\[([0-9;?]*[A-Za-z])|(.)", seen, re.DOTALL):
        if control == "1A":
            row = max(0, row - 1)
        elif control == "2K":
            rows[row] = ""
        elif char == "\r":
            column = 0
        elif char == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif char:
            rows[row] = rows[row][:column].ljust(column) + char + rows[row][column + 1 :]
            column += 1
    return [text.rstrip() for text in rows]
