"""A profile of several ranks as one trace for https://ui.perfetto.dev, and the table that shows stragglers (slow
ranks).

The record has one trace file from each rank, as its task sent it (`node/task_profile.py`). `read_trace` converts it to
the clock of the client. The command that shows a profile merges the files in its own process: merging takes seconds,
which would block the pool's event loop.

Stragglers are the slow ranks of a broadcast, for which the other ranks wait. A collective is an operation of all ranks,
such as all-reduce. If steps end with a collective, all ranks have the same step time, however slow one of them is: the
other ranks wait for the slow rank inside the collective. Only the time outside of collectives shows the slow rank.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

from ...actors import events as ev
from .runs.lines import EVENTS, event_in, whole_lines
from .runs.logged import ARTIFACT_FOLDER

# a straggler's time outside of collectives exceeds that of other ranks by at least this many seconds per step
LEAST_S = 0.001
# a straggler's time outside of collectives exceeds that of other ranks by at least this fraction of a step's time
LEAST_PART = 0.1
ROUNDS = 3  # with fewer compared steps, no rank is called a straggler
AGREEING = 0.8  # the fraction of the steps in which a straggler must be slower than the other ranks
PIECES = 6  # if the tasks report no steps, the common profiled time is divided into at most this many equal pieces
LEAST_PIECE_S = 0.05


class Interval(NamedTuple):
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class RankTimes(NamedTuple):
    """The times of one rank, in seconds on a clock common to all ranks.

    ``seen``: the profiled time. ``steps`` are in order; ``collectives`` may overlap.
    """

    rank: int
    node: int
    seen: Interval
    steps: Sequence[Interval]
    collectives: Sequence[Interval]


class Row(NamedTuple):
    """The medians of a rank's steps: time of a step, time outside of and inside of collectives.

    ``before_s``: time until the step's first collective; None: the rank has no collectives.
    """

    rank: int
    node: int
    step_s: float
    before_s: float | None
    outside_s: float
    inside_s: float


class Table(NamedTuple):
    """The comparison of the ranks.

    Attributes:
        rows: One row for each rank.
        steps: How many steps were compared. 0: the ranks were not profiled at the same time, and each row covers a
            rank's whole profiled time.
        by_steps: True: the steps are those that the tasks reported; False: equal pieces of time.
        stragglers: The slow ranks, for which the others wait; possibly none.
        excess_s: How much longer the stragglers are outside of collectives than all other ranks, in the median step.
    """

    rows: Sequence[Row]
    steps: int
    by_steps: bool
    stragglers: Sequence[int]
    excess_s: float


def table_of(ranks: Sequence[RankTimes]) -> Table:
    """Return the comparison of a broadcast's ranks.

    With fewer than two ranks, or without collectives, none is a straggler.
    """
    by_steps = all(rank.steps for rank in ranks) and bool(ranks)
    rounds = _steps(ranks) if by_steps else _pieces(ranks)
    parts = [[_measured(rank, each) for rank, each in zip(ranks, round_, strict=True)] for round_ in rounds]
    seen = parts or [[_measured(rank, rank.seen) for rank in ranks]]
    rows = [_row(rank, [each[index] for each in seen]) for index, rank in enumerate(ranks)]
    stragglers, excess_s = _stragglers(ranks, parts)
    return Table(rows, len(rounds), by_steps, stragglers, excess_s)


class _Measured(NamedTuple):
    step_s: float
    before_s: float | None
    inside_s: float

    @property
    def outside_s(self) -> float:
        return self.step_s - self.inside_s


def _steps(ranks: Sequence[RankTimes]) -> list[list[Interval]]:
    """Match the steps of all ranks: a step of one rank with the step of each other rank that overlaps it most.

    If independent ranks run their steps at different times, match the steps by their order instead.
    """
    leader = min(ranks, key=lambda rank: len(rank.steps))
    rounds = []
    for step in leader.steps:
        together = [max(rank.steps, key=lambda other: _shared(step, other)) for rank in ranks]
        if all(_shared(step, other) > 0 for other in together):
            rounds.append(together)
    if len(rounds) >= min(ROUNDS, len(leader.steps)):
        return rounds
    return [list(steps) for steps in zip(*(rank.steps for rank in ranks), strict=False)]


def _pieces(ranks: Sequence[RankTimes]) -> list[list[Interval]]:
    began = max((rank.seen.began for rank in ranks), default=0.0)
    ended = min((rank.seen.ended for rank in ranks), default=0.0)
    count = min(PIECES, int((ended - began) / LEAST_PIECE_S)) if ended > began else 0
    width = (ended - began) / max(1, count)
    return [[Interval(began + n * width, began + (n + 1) * width)] * len(ranks) for n in range(count)]


def _measured(rank: RankTimes, step: Interval) -> _Measured:
    inside = [each for each in rank.collectives if _shared(each, step) > 0]
    before = min((max(each.began, step.began) for each in inside), default=None)
    return _Measured(step.seconds, None if before is None else before - step.began, _together_s(inside, step))


def _together_s(intervals: Sequence[Interval], within: Interval) -> float:
    """Return how many seconds of the interval ``within`` the other intervals cover."""
    seconds, until = 0.0, within.began
    for began, ended in sorted(intervals):
        covered = min(ended, within.ended) - max(began, until)
        if covered > 0:
            seconds += covered
            until = min(ended, within.ended)
    return seconds


def _row(rank: RankTimes, parts: Sequence[_Measured]) -> Row:
    before = [each.before_s for each in parts if each.before_s is not None]
    return Row(
        rank.rank,
        rank.node,
        median(each.step_s for each in parts),
        median(before) if before else None,
        median(each.outside_s for each in parts),
        median(each.inside_s for each in parts),
    )


def _stragglers(ranks: Sequence[RankTimes], parts: Sequence[Sequence[_Measured]]) -> tuple[list[int], float]:
    """Return the ranks that are outside of collectives longer than all others in most steps, and by how many seconds.

    Ranks are sorted by their median time outside of collectives; the widest gap separates the slow ranks from the
    others.
    """
    if len(ranks) < 2 or len(parts) < ROUNDS or not all(each.collectives for each in ranks):
        return [], 0.0
    usual = [median(round_[index].outside_s for round_ in parts) for index in range(len(ranks))]
    order = sorted(range(len(ranks)), key=lambda index: usual[index])
    gaps = [usual[order[at]] - usual[order[at - 1]] for at in range(1, len(order))]
    cut = gaps.index(max(gaps)) + 1
    fast, slow = order[:cut], order[cut:]
    excess = [min(r[i].outside_s for i in slow) - max(r[i].outside_s for i in fast) for r in parts]
    least_s = max(LEAST_S, LEAST_PART * median(each.step_s for round_ in parts for each in round_))
    agreeing = sum(each > least_s for each in excess)
    if len(slow) > len(fast) or agreeing < AGREEING * len(parts):
        return [], 0.0
    return sorted(ranks[index].rank for index in slow), median(excess)


def _shared(one: Interval, other: Interval) -> float:
    return min(one.ended, other.ended) - max(one.began, other.began)


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


PROFILES = "profiles"  # folder in a run's record
# The lines about taken profiles contain this text. The many lines without it are not parsed.
_MARK = f'"{ev.ProfileTaken.name}"'.encode()
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
_COMPRESSION = 5
_PROCESSES = 1000  # the merged trace reserves this many process ids for each rank


class Missing(NamedTuple):
    """A rank or task whose trace is missing or incomplete. ``reason``: why."""

    whose: str
    reason: str


class Merged(NamedTuple):
    """A merged profile.

    ``trace``: path of the merged trace; None: there is none. ``table``: the comparison of ranks; None: outside of
    broadcasts.
    """

    name: str
    function: str
    trace: Path | None
    table: Table | None
    steps_by: str
    # largest error of the clock offsets between nodes in the trace, in seconds; None: unknown for some nodes
    clock_error_s: float | None
    missing: Sequence[Missing]


def profiles_in(directory: Path) -> dict[str, list[ev.ProfileTaken]]:
    """Return the profiles in a record: name -> the events that report the rank's traces. The newest profile is last.

    If a rank ran again, only its newest trace is included.
    """
    try:
        content = (directory / EVENTS).read_bytes()
    except FileNotFoundError:
        return {}
    by_profile: dict[str, dict[tuple[int, int, int], ev.ProfileTaken]] = {}
    for line in whole_lines(content):
        if _MARK not in line:
            continue
        with suppress(ValueError):
            fields = json.loads(line)
            event = event_in(fields) if isinstance(fields, dict) else None
            if isinstance(event, ev.ProfileTaken) and _NAME.fullmatch(event.profile):
                by_profile.setdefault(event.profile, {})[event.job, event.rank, event.node] = event
    return {name: list(parts.values()) for name, parts in by_profile.items()}


def merge(directory: Path, name: str, parts: Sequence[ev.ProfileTaken]) -> Merged:
    """Merge the traces of a profile, and write the merged trace and its facts into the record.

    Raises:
        OSError: The record cannot be written.
    """
    missing = [Missing(_whose(part).name, part.said) for part in parts if part.said or not part.artifact]
    usable, since_ns = list[tuple[Path, Whose]](), list[int]()
    for part in sorted(parts, key=lambda each: (each.job, each.rank, each.node)):
        if not _NAME.fullmatch(part.artifact):
            continue
        path, whose = directory / ARTIFACT_FOLDER / part.artifact, _whose(part)
        try:
            since_ns.append(read_head(path, whose).began_ns - round((whose.clock_offset_s or 0.0) * 1e9))
        except ValueError as error:
            missing.append(Missing(whose.name, str(error)))
        else:
            usable.append((path, whose))
    function = parts[0].function if parts else ""
    times: dict[tuple[int, int], list[RankTimes]] = {}
    by: list[str] = []
    if not usable:
        return _write_facts(directory, Merged(name, function, None, None, "", None, missing))

    def events() -> Iterator[dict[str, Any]]:
        for index, (path, whose) in enumerate(usable):
            try:
                trace = read_trace(path, whose)
            except ValueError as error:
                missing.append(Missing(whose.name, str(error)))
                continue
            if whose.generation:
                times.setdefault((whose.job, whose.generation), []).append(trace.times(min(since_ns)))
            by.append(trace.head.steps_by)
            yield from trace.events(min(since_ns), index * _PROCESSES)

    target = trace_path(directory, name)
    _write(target, lambda file: _write_trace(file, events()))
    largest = max(times.values(), key=len, default=None)
    table = None if largest is None else table_of(largest)
    errors = [whose.clock_error_s for _, whose in usable]
    error_s = 2 * max(each for each in errors if each is not None) if None not in errors else None
    return _write_facts(directory, Merged(name, function, target, table, next(filter(None, by), ""), error_s, missing))


def trace_path(directory: Path, name: str) -> Path:
    return directory / PROFILES / f"{name}.json.gz"


def facts(merged: Merged) -> dict[str, Any]:
    """Return the facts about a merged profile as JSON values."""
    table = merged.table
    return {
        "name": merged.name,
        "function": merged.function,
        "trace": None if merged.trace is None else str(merged.trace),
        "stragglers": [] if table is None else list(table.stragglers),
        "excess_s": 0.0 if table is None else table.excess_s,
        "steps": 0 if table is None else table.steps,
        "steps_by": merged.steps_by if table is not None and table.by_steps else "",
        "ranks": [] if table is None else [row._asdict() for row in table.rows],
        "clock_error_s": merged.clock_error_s,
        "missing": [{"whose": each.whose, "said": each.reason} for each in merged.missing],
        "said": lines_of(merged),
    }


def merged_profiles(directory: Path) -> list[dict[str, Any]]:
    """Return the facts about each merged profile in the record, the oldest first."""
    result = []
    with suppress(FileNotFoundError):
        for path in sorted((directory / PROFILES).glob("*.json"), key=lambda each: each.stat().st_mtime):
            with suppress(OSError, ValueError):
                fields = json.loads(path.read_bytes())
                if isinstance(fields, dict) and isinstance(fields.get("said"), list):
                    result.append(fields)
    return result


def lines_of(merged: Merged) -> list[str]:
    """Return the summary of a merged profile, as lines of text."""
    lines = [f"profile {merged.name} of {merged.function or 'nothing'}{_counted(merged)}"]
    if merged.table is not None and merged.table.rows:
        lines += _rows(merged.table)
        lines += [verdict(merged)]
    lines += [f"{each.whose}: {each.reason or 'no trace'}" for each in merged.missing]
    if merged.trace is not None:
        lines.append(f"trace: {merged.trace}, for https://ui.perfetto.dev")
    return lines


def verdict(merged: Merged) -> str:
    """Return a sentence that names the stragglers, or says why none are named."""
    table = merged.table
    if table is None or len(table.rows) < 2:
        return "No straggler can be told of less than two ranks."
    if not table.steps:
        return "No straggler can be told: the ranks were not seen at the same time."
    if all(row.before_s is None for row in table.rows):
        return "No straggler can be told: no collective was seen."
    if not table.stragglers:
        return "No straggler: no rank is outside of collectives clearly longer than the others."
    named = [row for row in table.rows if row.rank in table.stragglers]
    nodes = [str(node) for node in dict.fromkeys(row.node for row in named)]
    ranks = ", ".join(str(row.rank) for row in named)
    one = len(named) == 1
    is_slow = "is the straggler: it is" if one else "are slow: they are"
    whose = f"Rank{'' if one else 's'} {ranks} (node{'s' * (len(nodes) > 1)} {', '.join(nodes)}) {is_slow}"
    longer = f"outside of collectives {milliseconds(table.excess_s)} longer in each step than any other"
    return f"{whose} {longer}, and the others wait for {'it' if one else 'them'} inside."


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"


def _counted(merged: Merged) -> str:
    table = merged.table
    if table is None or not table.rows:
        return ""
    if not table.steps:
        steps = "which were not seen at the same time"
    else:
        steps = f"{table.steps} steps" if table.by_steps else f"{table.steps} pieces of time, for it knows of no steps"
    return f": {len(table.rows)} rank{'s' * (len(table.rows) > 1)}, {steps}"


def _rows(table: Table) -> list[str]:
    unit = "seen" if not table.steps else "step" if table.by_steps else "piece"
    head = ("rank", "node", unit, "before", "outside", "inside")
    cells = [head] + [
        (str(row.rank), str(row.node), *map(milliseconds, (row.step_s, row.before_s, row.outside_s, row.inside_s)))
        for row in table.rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    marks = ["", *("  <-" if row.rank in table.stragglers else "" for row in table.rows)]
    return [f" {line}{mark}" for line, mark in zip(lines, marks, strict=True)]


def _whose(part: ev.ProfileTaken) -> Whose:
    return Whose(
        part.rank,
        part.ranks,
        part.node,
        part.function,
        part.job,
        part.generation,
        part.clock_offset_s,
        part.clock_error_s,
    )


def _write_facts(directory: Path, merged: Merged) -> Merged:
    content = json.dumps(facts(merged), indent=2).encode(errors="replace")
    _write(directory / PROFILES / f"{merged.name}.json", lambda file: file.write(content))
    return merged


def _write_trace(file: IO[bytes], events: Iterator[dict[str, Any]]) -> None:
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed:
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        encode = json.JSONEncoder(separators=(",", ":")).encode
        for number, event in enumerate(events):
            packed.write(f"{',' * (number > 0)}{encode(event)}\n".encode(errors="replace"))
        packed.write(b"]}\n")


def _write(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file completely or not at all. Only the user can read it."""
    target.parent.mkdir(mode=0o700, exist_ok=True)
    new = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:  # noqa: PTH123
            write(file)
        new.rename(target)
    finally:
        new.unlink(missing_ok=True)
