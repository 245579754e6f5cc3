"""Lines that show what tasks print, and say where it comes from."""

from __future__ import annotations

from ...actors import events as ev
from ..api.printable import lines, one_line


def marked(event: ev.TaskOutput) -> str:
    """The output of a task, each line prefixed with where it comes from."""
    mark = f"[{origin(event)}] "
    gap = f"{mark}... {event.dropped:,} bytes were lost here\n" if event.dropped else ""
    return gap + "".join(f"{mark}{line}\n" for line in lines(event.text))


def origin(event: ev.TaskOutput) -> str:
    """``rank 3 · train`` in a broadcast with several ranks; elsewhere ``node 2 · f #17``, with the job's number."""
    name = one_line(event.function)
    if event.ranks > 1:
        return f"rank {event.rank} · {name or event.job}"
    if not event.job:  # of an attempt that is over
        return f"node {event.node}"
    return f"node {event.node} · {name or 'task'} #{event.job}"
