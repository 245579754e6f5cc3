"""The contents of a run's record, in the form that a report needs. Missing and damaged files are skipped.

Of each log there is an excerpt: as much of the beginning and the end of the log as a page has room for.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ..profiles import merged_profiles
from ..runs.lines import (
    EVENTS,
    LOGS,
    LogLine,
    SavedCheckpoint,
    events_in,
    parsed_events,
    parsed_log,
    read_samples,
    saved_checkpoints,
)
from ..runs.metrics import Point, Series, divided, read_metrics
from ..runs.reader import Owned, Run, read_json

BUDGET_BYTES = 512 * 1024  # most bytes of all excerpts together
LEAST_BYTES = 4 * 1024  # a log is left out if its excerpt would have fewer bytes than this
HEAD = 4  # one part in this many of an excerpt's bytes is from the log's beginning
LINE_CHARS = 2000
_LOG = re.compile(r"(rank|node)-(\d+)(?:\.(\d+))?\.log")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """An excerpt of one log.

    ``names``: the log's files, in order. ``head`` and ``tail``: its first and last lines. ``left_out_bytes``: the
    number of bytes between them.
    """

    names: Sequence[str]
    size_bytes: int
    head: list[LogLine]
    tail: list[LogLine]
    left_out_bytes: int

    @property
    def title(self) -> str:
        return log_title(self.names)


def logs_in(names: Sequence[str]) -> list[list[str]]:
    """Group the file names of logs: one list for each log, with its parts in order.

    The logs of ranks come first, then those of nodes, each by number.
    """
    logs: dict[tuple[bool, int], list[tuple[int, str]]] = {}
    for name in names:
        if match := _LOG.fullmatch(name):
            logs.setdefault((match[1] != "rank", int(match[2])), []).append((int(match[3] or 0), name))
    return [[name for _, name in sorted(logs[key])] for key in sorted(logs)]


def log_title(names: Sequence[str]) -> str:
    match = _LOG.fullmatch(names[0])
    return f"{match[1]} {int(match[2])}" if match else names[0]


def excerpts(
    folder: Path,
    logs: Sequence[Sequence[str]],
    budget_bytes: int = BUDGET_BYTES,
    read: Mapping[str, int] | None = None,
) -> tuple[list[Excerpt], list[str]]:
    """Return excerpts of the logs in ``folder``, and the titles of the logs for which there is no room.

    Args:
        folder: The folder of the logs.
        logs: The file names of each log, the most important log first.
        budget_bytes: The most bytes of all excerpts together.
        read: File name -> number of bytes to use, if the caller shows later bytes itself; None: use whole files.
    """
    shown = [_sizes(folder, names) for names in logs[: max(1, budget_bytes // LEAST_BYTES)]]
    if read is not None:
        shown = [{name: min(size, read.get(name, 0)) for name, size in parts.items()} for parts in shown]
    room = shares([sum(parts.values()) for parts in shown], budget_bytes)
    result = []
    for parts, most in zip(shown, room, strict=True):
        if parts:
            result.append(_excerpt(folder, parts, most))
    return result, [log_title(names) for names in logs[len(shown) :]]


def shares(sizes: Sequence[int], budget: int) -> list[int]:
    """Divide ``budget`` among the sizes: equally, but what small sizes do not need goes to the larger ones."""
    result = [0] * len(sizes)
    left = budget
    for number, place in enumerate(sorted(range(len(sizes)), key=lambda each: sizes[each])):
        result[place] = min(sizes[place], left // (len(sizes) - number))
        left -= result[place]
    return result


def _excerpt(folder: Path, parts: Mapping[str, int], most: int) -> Excerpt:
    size = sum(parts.values())
    if size <= most:
        return Excerpt([*parts], size, list(_lines(_content(folder, parts, 0, size))), [], 0)
    head = _content(folder, parts, 0, most // HEAD)
    head = head[: head.rfind(b"\n") + 1]
    tail = _content(folder, parts, size - (most - most // HEAD), size)
    tail = tail[tail.find(b"\n") + 1 :]
    return Excerpt([*parts], size, list(_lines(head)), list(_lines(tail)), size - len(head) - len(tail))


def _sizes(folder: Path, names: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for name in names:
        with suppress(OSError):
            sizes[name] = (folder / name).lstat().st_size
    return sizes


def _content(folder: Path, parts: Mapping[str, int], begin: int, end: int) -> bytes:
    """Return the bytes from ``begin`` to ``end`` of a log, given its files and their sizes."""
    pieces, at = [], 0
    for name, size in parts.items():
        first, last = max(begin - at, 0), min(end - at, size)
        at += size
        if first < last:
            # the file may be missing: an open run deletes old files of its logs
            with suppress(OSError), (folder / name).open("rb", buffering=0) as file:
                file.seek(first)
                pieces.append(file.read(last - first))
    return b"".join(pieces)


def _lines(content: bytes) -> Iterator[LogLine]:
    for line in content.split(b"\n")[:-1]:
        parsed = parsed_log(line[:LINE_CHARS])
        if parsed is not None:
            yield parsed


TEXTS, ARTIFACTS, PARAMS, STACKS = "texts.jsonl", "artifacts.jsonl", "params.json", "stacks"
STACK_BUDGET_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a run's record.

    ``owner``: whether the program that writes the record is alive; None: the run has ended. ``logs_left``: titles of
    the logs for which the page has no room.
    """

    run: Run
    owner: Owned | None
    now: float  # unix time at which the record was read
    about: Mapping[str, Any]
    result: Mapping[str, Any]
    events: Sequence[ev.Event]
    checkpoints: Sequence[SavedCheckpoint]
    # series -> (points to show, older points whose steps a restart of the broadcast has repeated)
    metrics: Mapping[Series, tuple[Sequence[Point], Sequence[Point]]]
    samples: Sequence[ev.NodeSampled]
    params: Mapping[str, Any]
    texts: Sequence[Mapping[str, Any]]
    artifacts: Sequence[Mapping[str, Any]]
    logs: Sequence[Excerpt]
    logs_left: Sequence[str]
    stacks: Sequence[tuple[str, str]]  # (file name, text) of each file with stacks
    profiles: Sequence[Mapping[str, Any]]  # in the form that `record.profiles` writes
    files: Sequence[tuple[str, int]]  # (path, size in bytes) of files and folders

    @property
    def began(self) -> float:
        began = self.run.status.get("began") or self.about.get("began")
        if isinstance(began, int | float):
            return float(began)
        return self.events[0].at if self.events else self.now

    @property
    def ended(self) -> float:
        """Return the unix time of the run's end.

        For a run that has not ended: now if its program is alive, otherwise the time at which the record last changed.
        """
        status = self.run.status
        if isinstance(status.get("ended"), int | float):
            return float(status["ended"])
        if self.owner == "alive":
            return self.now
        times = [self.began, *(event.at for event in self.events[-1:])]
        times += [float(status[name]) for name in ("written", "changed") if isinstance(status.get(name), int | float)]
        return max(times)


def read_contents(run: Run) -> Contents:
    """Read the record of ``run``. If the run has not ended, read what the record has so far."""
    folder = run.directory
    owner = None if run.ended else run.owner
    content = content_of(folder / EVENTS)
    events = list(events_in(content))
    result = read_json(folder / "result.json")
    shown, left = excerpts(folder / LOGS, logs_of(folder / LOGS, events, result))
    return Contents(
        run=run,
        owner=owner,
        now=time.time(),
        about=read_json(folder / "run.json"),
        result=result,
        events=events,
        checkpoints=list(saved_checkpoints(content)),
        metrics=divided(read_metrics(folder)),
        samples=read_samples(folder),
        params=read_json(folder / PARAMS),
        texts=list(parsed_events(content_of(folder / TEXTS))),
        artifacts=list(parsed_events(content_of(folder / ARTIFACTS))),
        logs=shown,
        logs_left=left,
        stacks=list(stacks_in(folder / STACKS)),
        profiles=merged_profiles(folder),
        files=sorted(files_in(folder)),
    )


def content_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def logs_of(folder: Path, events: Sequence[ev.Event], result: Mapping[str, Any]) -> list[list[str]]:
    """Return the logs, each as a list of the names of its files.

    The log of the rank that failed first comes first, then the logs of other failed ranks, then all other logs.
    """
    try:
        logs = logs_in(os.listdir(folder))  # noqa: PTH208  names
    except OSError:
        return []
    leading = f"rank-{rank:03}.log" if isinstance(rank := first_failed(result).get("rank"), int) else ""
    failed = [event for event in events if isinstance(event, ev.JobFailed)]
    first = {f"rank-{rank:03}.log" for event in failed for rank in event.ranks}
    first |= {f"node-{event.node:03}.log" for event in failed if not event.ranks}
    return sorted(logs, key=lambda names: (names[0] != leading, first.isdisjoint(names)))


def stacks_in(folder: Path) -> Iterator[tuple[str, str]]:
    left = STACK_BUDGET_BYTES
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208  names
            with suppress(OSError), (folder / name).open("rb") as file:
                content = file.read(left)
                left -= len(content)
                yield name, content.decode(errors="replace")
            if left <= 0:
                return


def files_in(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield (path, size) for each file at the top of the record, and for each of its folders with all files in it."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield f"{entry.name}/", _size(entry.path)
            elif entry.is_file(follow_symlinks=False) and entry.name != "lock":
                yield entry.name, entry.stat(follow_symlinks=False).st_size


def _size(folder: str) -> int:
    size_bytes = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118  faster for many files
    return size_bytes


def first_failed(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts about the rank that failed first; {}: no broadcast failed."""
    error = result.get("error")
    first = error.get("first") if isinstance(error, dict) else None
    return first if isinstance(first, dict) else {}


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
