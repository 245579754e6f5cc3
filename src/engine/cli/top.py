"""`outrider top`: shows the resource use of a run's nodes, with a curve of each node's newest samples."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Annotated

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...actors.events import GpuSample, NodeSampled
from ...lazy_dataclass import dataclass
from ..api.quantities import count, seconds, size
from ..record.runs.lines import SampleFile, sample_fields
from ..record.runs.reader import Run, at_present, read_json
from .common import DONE, AsJson, Flag
from .run_choice import RunWord, chosen_run

SHOWN = 30  # a curve shows at most so many samples
BESIDE, LEAST_BARS = 68, 8  # columns of the terminal that the curve does not use; smallest number of columns of a curve
MISSED = 4  # after so many sampling intervals without a sample, a node's figures are shown as old
BARS = "▁▂▃▄▅▆▇█"
NO_BAR = "·"  # the bar of an unknown value
_GB = 1 << 30
COLUMNS = ("node", "", "now", "", "memory", "network, power")


@dataclass(slots=True)
class Usage:
    """The newest samples of each node, at most `SHOWN` of a node."""

    nodes: dict[int, deque[NodeSampled]] = field(default_factory=dict)

    def add(self, samples: Iterable[NodeSampled]) -> None:
        for sample in samples:
            self.nodes.setdefault(sample.node, deque(maxlen=SHOWN)).append(sample)

    def newest(self) -> list[NodeSampled]:
        """Return the newest sample of each node, ordered by node."""
        return [samples[-1] for _, samples in sorted(self.nodes.items())]


def shown(usage: Usage, title: str, now: float, rows: int, columns: int) -> RenderableType:
    """Return the table of as many nodes as fit into ``rows`` lines. With fewer ``columns``, the curves are shorter.

    ``now``: unix time; for an ended run, the time of its end.
    """
    bars = min(SHOWN, max(LEAST_BARS, columns - BESIDE))
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("node", "now", "memory") else "left", no_wrap=True)
    left, hidden = rows, 0
    for node, samples in sorted(usage.nodes.items()):
        lines = _lines(node, [*samples], now, bars)
        if hidden or len(lines) > left:
            hidden += 1
            continue
        left -= len(lines)
        for line, style in lines:
            table.add_row(*map(Text, line), style=style)
    parts: list[RenderableType] = [Text(title, no_wrap=True, overflow="ellipsis"), table]
    if not usage.nodes:
        parts[1] = Text("no samples yet: a node sends its first after some seconds", style="dim")
    if hidden:
        parts.append(Text(f"  and {count(hidden, 'node')} more", style="dim"))
    return Group(*parts)


def curve(values: Sequence[float | None]) -> str:
    """Return a curve as a text: one bar character for each value from 0 to 1."""
    return "".join(NO_BAR if value is None else BARS[min(7, max(0, int(value * 8)))] for value in values)


def _lines(node: int, samples: Sequence[NodeSampled], now: float, bars: int) -> list[tuple[tuple[str, ...], str]]:
    """Return the table lines of a node, one for its processors and one for each GPU, each with its style."""
    newest = samples[-1]
    old_s = now - newest.at
    is_old = old_s > MISSED * newest.seconds
    rates = (each / newest.seconds if newest.seconds else 0.0 for each in (newest.received_bytes, newest.sent_bytes))
    received, sent = map(size, rates)
    traffic = f"last heard of {seconds(old_s)} ago" if is_old else f"in {received}/s, out {sent}/s"
    cells = (
        str(node),
        f"{newest.cpus:g} cpus",
        _percent(newest.cpu),
        curve([each.cpu for each in samples[-bars:]]),
        _memory(newest.memory_bytes, newest.memory_total_bytes),
        traffic,
    )
    style = "dim" if is_old else ""
    return [(cells, style), *((_gpu_line(gpu, samples[-bars:]), style) for gpu in newest.gpus)]


def _gpu_line(gpu: GpuSample, samples: Sequence[NodeSampled]) -> tuple[str, ...]:
    def use(sample: NodeSampled) -> float | None:
        return next((each.utilisation for each in sample.gpus if each.index == gpu.index), None)

    watts = "" if gpu.watts is None else f"{gpu.watts:.0f} W"
    memory = _memory(gpu.memory_bytes, gpu.memory_total_bytes)
    return "", f"gpu {gpu.index}", _percent(gpu.utilisation), curve([*map(use, samples)]), memory, watts


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _memory(used: int, total: int) -> str:
    return f"{used / _GB:.1f} of {total / _GB:.1f} GB" if total else "?"


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
