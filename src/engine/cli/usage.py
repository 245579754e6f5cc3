"""A table of the resource use of a run's nodes, with a curve of each node's newest samples. No clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...actors.events import GpuSample, NodeSampled
from ...lazy_dataclass import dataclass
from ..api.quantities import count, seconds, size

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
