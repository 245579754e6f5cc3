"""Excerpts of a run's logs: as much of the beginning and the end of each log as a page has room for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...lazy_dataclass import dataclass
from ..runs.lines import LogLine, parsed_log

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
