"""The logs of a run, as much of each as a page has room for: its beginning and its end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...lazy_dataclass import dataclass
from ..runs.lines import LogLine, parsed_log

BUDGET_BYTES = 512 * 1024  # of all logs together
LEAST_BYTES = 4 * 1024  # of each that is shown
HEAD = 4  # the beginning has a fourth of what is shown
LINE_CHARS = 2000
_LOG = re.compile(r"(rank|node)-(\d+)(?:\.(\d+))?\.log")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A log whose parts are the files ``names``. ``left_out_bytes``: between ``head`` and ``tail``."""

    names: Sequence[str]
    size_bytes: int
    head: list[LogLine]
    tail: list[LogLine]
    left_out_bytes: int

    @property
    def title(self) -> str:
        return log_title(self.names)


def logs_in(names: Sequence[str]) -> list[list[str]]:
    """Return the logs that files of these names are, each as its parts in order: ranks first, by number."""
    found: dict[tuple[bool, int], list[tuple[int, str]]] = {}
    for name in names:
        if said := _LOG.fullmatch(name):
            found.setdefault((said[1] != "rank", int(said[2])), []).append((int(said[3] or 0), name))
    return [[name for _, name in sorted(found[key])] for key in sorted(found)]


def log_title(names: Sequence[str]) -> str:
    said = _LOG.fullmatch(names[0])
    return f"{said[1]} {int(said[2])}" if said else names[0]


def excerpts(
    folder: Path,
    logs: Sequence[Sequence[str]],
    budget_bytes: int = BUDGET_BYTES,
    read: Mapping[str, int] | None = None,
) -> tuple[list[Excerpt], list[str]]:
    """Return what is shown of the logs in ``folder``, and the titles of those that are not: the last of ``logs``.

    ``read``: how many bytes of each file count, where what came later is told otherwise.
    """
    shown = [_sizes(folder, names) for names in logs[: max(1, budget_bytes // LEAST_BYTES)]]
    if read is not None:
        shown = [{name: min(size, read.get(name, 0)) for name, size in parts.items()} for parts in shown]
    room = shares([sum(parts.values()) for parts in shown], budget_bytes)
    found = []
    for parts, most in zip(shown, room, strict=True):
        if parts:
            found.append(_excerpt(folder, parts, most))
    return found, [log_title(names) for names in logs[len(shown) :]]


def shares(sizes: Sequence[int], budget: int) -> list[int]:
    """Return how much each may take of ``budget``: what small ones leave is for the large ones, alike."""
    given = [0] * len(sizes)
    left = budget
    for number, place in enumerate(sorted(range(len(sizes)), key=lambda each: sizes[each])):
        given[place] = min(sizes[place], left // (len(sizes) - number))
        left -= given[place]
    return given


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
    """Return the bytes from ``begin`` to ``end`` of all parts together."""
    found, at = [], 0
    for name, size in parts.items():
        first, last = max(begin - at, 0), min(end - at, size)
        at += size
        if first < last:
            with suppress(OSError), (folder / name).open("rb", buffering=0) as file:  # a living run removes old parts
                file.seek(first)
                found.append(file.read(last - first))
    return b"".join(found)


def _lines(content: bytes) -> Iterator[LogLine]:
    for line in content.split(b"\n")[:-1]:
        parsed = parsed_log(line[:LINE_CHARS])
        if parsed is not None:
            yield parsed
