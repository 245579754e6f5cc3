"""Hints for errors of tasks that occur only because a task runs on a node: without a terminal, in another folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

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
