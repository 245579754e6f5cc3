"""The trace of one rank, as its task sent it (`node/task_profile.py`), converted to the clock of the client."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .stragglers import Interval, RankTimes

# beginning of the names of collectives among the events of torch.distributed
COLLECTIVE = re.compile(r"(gloo|nccl|mpi|ucc|xccl|hccl):")
KERNEL = re.compile(r"(?i)(nccl|rccl)")  # beginning of the names of NCCL's and RCCL's kernels on GPUs
# names of Outrider's own rows in the trace, which the viewer shows like threads
STEPS, PYTHON = "steps", "Python functions (sampled)"
MOST_BYTES = 1100 << 20  # largest decompressed size of one rank's trace; nodes send no larger traces


class Whose(NamedTuple):
    """The rank or task whose trace this is.

    ``clock_offset_s``: by how many seconds its node's clock is ahead of the client's; None: unknown, taken as 0.
    """

    rank: int
    ranks: int
    node: int
    function: str
    job: int
    generation: int  # 0 outside of broadcasts
    clock_offset_s: float | None
    clock_error_s: float | None

    @property
    def name(self) -> str:
        if self.generation:
            return f"rank {self.rank} of {self.function}, node {self.node}"
        return f"{self.function} #{self.job}, node {self.node}"


class Head(NamedTuple):
    """The times that Outrider itself measured in the task, in nanoseconds of the node's clock.

    ``python``: sampled functions: (index in ``names``, begin relative to ``began_ns``, duration).
    """

    began_ns: int
    ended_ns: int
    steps_ns: Sequence[int]
    steps_by: str
    names: Sequence[str]
    python: Sequence[tuple[int, int, int]]


class Trace:
    """The trace of one rank. ``torch``: the unchanged events of torch's profiler; empty: that profiler did not run."""

    def __init__(self, whose: Whose, head: Head, torch: Sequence[Mapping[str, Any]], base_ns: int) -> None:
        self.whose, self.head, self.torch = whose, head, torch
        offset_ns = round((whose.clock_offset_s or 0.0) * 1e9)
        self._own_ns, self._torch_ns = -offset_ns, base_ns - offset_ns

    def times(self, since_ns: int) -> RankTimes:
        """Return the times of the rank for the comparison, in seconds since ``since_ns`` on the client's clock."""
        head, whose = self.head, self.whose

        def at(ns: int) -> float:
            return (ns + self._own_ns - since_ns) / 1e9

        ends = [at(ns) for ns in head.steps_ns]
        steps = [Interval(began, ended) for began, ended in itertools.pairwise(ends)]
        shift_us = (self._torch_ns - since_ns) / 1e3
        collectives = [
            Interval((each["ts"] + shift_us) / 1e6, (each["ts"] + each["dur"] + shift_us) / 1e6)
            for each in collectives_of(self.torch)
        ]
        return RankTimes(whose.rank, whose.node, Interval(at(head.began_ns), at(head.ended_ns)), steps, collectives)

    def events(self, since_ns: int, first: int) -> Iterator[dict[str, Any]]:
        """Yield the rank's events for the merged trace, in microseconds since ``since_ns`` on the client's clock.

        ``first``: the process id of the rank itself; its other processes get the ids that follow.
        """
        name, own = self.whose.name, first
        pids: dict[Any, int] = {}
        kinds: dict[Any, str] = {}
        for each in self.torch:
            if each.get("ph") == "M" and each.get("name") == "process_labels":
                kinds[each.get("pid")] = str(each.get("args", {}).get("labels", ""))
        for pid in dict.fromkeys(each.get("pid") for each in self.torch if each.get("ph") != "M"):
            cpu = kinds.get(pid, "") == "CPU" and own not in pids.values()
            pids[pid] = own if cpu else first + 1 + len(pids)
        titles = {own: name} | {n: f"{name}: {kinds.get(pid) or pid}" for pid, n in pids.items() if n != own}
        for pid, title in titles.items():
            yield _meta("process_name", pid, 0, {"name": title})
            yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        yield from self._own_events(since_ns, own)
        shift_us = (self._torch_ns - since_ns) / 1e3
        for each in self.torch:
            if (moved := _moved(each, shift_us, pids, self.whose)) is not None:
                yield moved

    def _own_events(self, since_ns: int, pid: int) -> Iterator[dict[str, Any]]:
        head = self.head
        for track, index in ((STEPS, -2), (PYTHON, -1)):
            yield _meta("thread_name", pid, track, {"name": track})
            yield _meta("thread_sort_index", pid, track, {"sort_index": index})
        shift_ns = self._own_ns - since_ns
        for number, (began, ended) in enumerate(itertools.pairwise(head.steps_ns), 1):
            yield _span(f"step {number}", pid, STEPS, began + shift_ns, ended - began)
        for name, began, took in head.python:
            yield _span(head.names[name], pid, PYTHON, head.began_ns + began + shift_ns, took)


def collectives_of(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events that show when collectives ran: those of GPUs or, if there are none, those of the CPU.

    On a GPU, a collective waits for the other ranks in an NCCL kernel; the CPU only queues the kernel.
    """
    spans = [each for each in events if each.get("ph") == "X" and "dur" in each]
    kernels = [each for each in spans if each.get("cat") == "kernel" and KERNEL.match(str(each.get("name")))]
    return kernels or [
        each for each in spans if each.get("cat") == "user_annotation" and COLLECTIVE.match(str(each.get("name")))
    ]


def read_trace(path: Path, whose: Whose) -> Trace:
    """Read the trace file that a task has sent.

    Raises:
        ValueError: The file is not a trace, or is incomplete.
    """
    try:
        with gzip.open(path) as file:
            head = _head(file.readline(MOST_BYTES))
            rest = file.read(MOST_BYTES)
        torch = json.loads(rest) if rest.strip() else {}
        return Trace(whose, head, torch.get("traceEvents", []), int(torch.get("baseTimeNanoseconds", 0)))
    except _DAMAGED as error:
        raise _unreadable(path, whose, error) from error


def read_head(path: Path, whose: Whose) -> Head:
    """Read only the first line of a trace file. Raise a `ValueError` as `read_trace` does."""
    try:
        with gzip.open(path) as file:
            return _head(file.readline(MOST_BYTES))
    except _DAMAGED as error:
        raise _unreadable(path, whose, error) from error


_DAMAGED = (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, zlib.error)


def _unreadable(path: Path, whose: Whose, error: Exception) -> ValueError:
    return ValueError(f"the trace of {whose.name} in {path} cannot be read: {type(error).__name__}: {error}")


def _head(line: bytes) -> Head:
    fields = json.loads(line)
    return Head(
        int(fields["began_ns"]),
        int(fields["ended_ns"]),
        [int(ns) for ns in fields["steps_ns"]],
        str(fields["steps_by"]),
        [str(name) for name in fields["names"]],
        [(int(name), int(began), int(took)) for name, began, took in fields["python"]],
    )


def _moved(event: Mapping[str, Any], shift_us: float, pids: Mapping[Any, int], whose: Whose) -> dict[str, Any] | None:
    """Convert an event of torch's profiler for the merged trace; None: leave the event out.

    This changes its time to the client's clock, its process id, and its id, so that ids are unique among all ranks.
    """
    pid = pids.get(event.get("pid"))
    if pid is None or event.get("name") in ("process_name", "process_labels", "process_sort_index"):
        return None
    moved = {**event, "pid": pid}
    if isinstance(ts := event.get("ts"), int | float):
        moved["ts"] = round(ts + shift_us, 3)
    if "id" in event:
        moved["id"] = f"{whose.job}.{whose.rank}.{event['id']}"
    return moved


def _meta(name: str, pid: int, tid: int | str, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": _tid(tid), "args": args}


def _span(name: str, pid: int, track: str, began_ns: int, took_ns: int) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": _tid(track), "ts": began_ns / 1e3, "dur": took_ns / 1e3}


def _tid(track: int | str) -> int:
    return {STEPS: 1, PYTHON: 2}[track] if isinstance(track, str) else track
