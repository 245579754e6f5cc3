"""`outrider top`: shows the resource use of a run's nodes."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from rich.console import Console, RenderableType
from rich.live import Live

from ..runs.reader import Run, at_present, read_json
from ..runs.samples import SampleFile, sample_fields
from .exit_codes import DONE
from .flags import AsJson, Flag
from .run_choice import RunWord, chosen_run
from .usage import Usage, shown

LOOK_S = 0.5  # seconds between two reads of new samples
# bytes to read from the end of the samples' file: enough for the curves of more than a hundred nodes
TAIL_BYTES = 4 << 20
AROUND = 4  # lines of the terminal that the rows of nodes do not use


def top(run: RunWord, /, *, once: Annotated[bool, Flag] = False, as_json: AsJson = False) -> int:
    """Show each node's use of processors, memory, network and GPUs, with curves of the last samples.

    Example: `outrider top train`

    On a terminal, the table is updated until the run ends, or you press q or Ctrl-C. If the output is not a terminal,
    or the run has ended, the table is printed once. Exits with 2 if there is no such run.

    Parameters
    ----------
    once:
        Print the table once, and exit.
    as_json:
        Print the newest sample of each node as JSON, for programs.
    """
    chosen = chosen_run(run)
    view = View(chosen)
    view.read()
    console = Console()
    _show(view, console, once=once, as_json=as_json)
    return DONE


def _show(view: View, console: Console, *, once: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"at": each.at, **sample_fields(each)} for each in view.usage.newest()], indent=2))
    elif once or view.ended or not console.is_terminal:
        console.print(view.table(sys.maxsize, console.width))
    else:
        _follow(view, console)


class View:
    """A run, and the newest samples of its nodes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._file = SampleFile.at_end(run.directory, TAIL_BYTES)
        self.usage = Usage()
        self.ended = False

    def read(self) -> None:
        """Read new samples."""
        owner, now = at_present(self._run)
        self.ended = owner == "dead" or now.ended
        self.usage.add(self._file.new_samples())

    def table(self, rows: int, columns: int) -> RenderableType:
        newest = max((each.at for each in self.usage.newest()), default=time.time())
        now = newest if self.ended else time.time()
        state = read_json(self._run.directory / "status.json").get("state", "")
        title = f"{self._run.id} · {'its owner died' if self.ended and state != 'ended' else state}"
        return shown(self.usage, title, now, rows, columns)


def _follow(view: View, console: Console) -> None:
    """Show the table until the run has ended or the user quits. The last table stays on the terminal."""
    try:
        with _keys() as pressed, Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(view.table(console.height - AROUND, console.width), refresh=True)
                if view.ended or pressed(LOOK_S) == "q":
                    return
                view.read()
    except KeyboardInterrupt:
        pass


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits at most the given seconds for a key, and returns the key, or an empty text.

    The terminal shows no typed keys, and keys need no Return.
    """
    stdin = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None

    def pressed(within_s: float) -> str:
        if stdin is None:
            time.sleep(within_s)
            return ""
        ready, _, _ = select.select([stdin], [], [], within_s)
        # an empty read means that the terminal is gone: quit, as after "q"
        return (os.read(stdin, 1).decode(errors="replace").lower() or "q") if ready else ""

    if stdin is None:
        yield pressed
        return
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
