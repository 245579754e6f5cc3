"""A profile of several ranks as one trace for https://ui.perfetto.dev, and the table that shows stragglers (slow
ranks).

The record has one trace file from each rank. The command that shows a profile merges the files in its own process:
merging takes seconds, which would block the pool's event loop.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...actors import events as ev
from ..runs.event_reading import event_in
from ..runs.lines import EVENTS, whole_lines
from ..runs.log_writer import ARTIFACTS
from .stragglers import RankTimes, Table, table_of
from .traces import Whose, read_head, read_trace

PROFILES = "profiles"  # folder in a run's record
# The lines of such events contain this text. The many lines without it are not parsed.
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
        path, whose = directory / ARTIFACTS / part.artifact, _whose(part)
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
