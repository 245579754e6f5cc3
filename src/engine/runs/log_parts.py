"""Logs in parts, of which only the first and the newest are kept, as a task may print for days. No I/O.

A log is one file, `rank-000.log`, until that file is large; the log continues in `rank-000.1.log`, `rank-000.2.log` and
so on.

LOGS-1: the concatenated parts of a log are the printed text; each part has whole lines only, and each part but the
first
        begins with a line that names the part.
LOGS-2: the first part of a log is kept, and so are its newest `NEWEST` parts, however large other logs are.
LOGS-3: each log keeps at most 1 + `NEWEST` parts of at most `limit` bytes, except for longer lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from .lines import OURS

PART_BYTES = 16 * 2**20  # largest size of a part if the record has few logs
ALL_BYTES = 2**30  # approximate limit for the sum of all logs of a record
LEAST_BYTES = 64 * 2**10  # largest size of a part if the record has many logs
NEWEST = 2  # number of newest parts of a log that are kept besides the first part


class Placed(NamedTuple):
    """The text to append to files, and the files to remove after that."""

    text: dict[str, bytes]
    outdated: list[str]


@dataclass(slots=True)
class _Log:
    part: int = 0  # number of the present part
    size_bytes: int = 0  # size of the present part


class LogParts:
    """The parts of a record's logs. A log is identified by the path of its first part."""

    def __init__(
        self, part_bytes: int = PART_BYTES, all_bytes: int = ALL_BYTES, least_bytes: int = LEAST_BYTES
    ) -> None:
        self._part_bytes, self._all_bytes, self._least_bytes = part_bytes, all_bytes, least_bytes
        self._logs: dict[str, _Log] = {}

    @property
    def limit(self) -> int:
        """The most bytes that a part may have."""
        return min(
            self._part_bytes, max(self._least_bytes, self._all_bytes // ((1 + NEWEST) * max(1, len(self._logs))))
        )

    def place(self, text: Mapping[str, bytes]) -> Placed:
        """Assign the text of each log (whole lines, after those of earlier calls) to its parts."""
        placed = Placed({}, [])
        for path in text:
            self._logs.setdefault(path, _Log())
        for path, lines in text.items():
            self._place(path, lines, placed)
        return placed

    def _place(self, path: str, lines: bytes, placed: Placed) -> None:
        log, at = self._logs[path], 0
        while at < len(lines):
            mark = b"" if log.size_bytes or not log.part else _mark(log.part, lines, at)
            room = self.limit - log.size_bytes - len(mark)
            end = lines.rfind(b"\n", at, at + max(0, room)) + 1
            if not end and log.size_bytes:
                log.part, log.size_bytes = log.part + 1, 0
                if log.part > NEWEST:
                    self._remove(part_path(path, log.part - NEWEST), placed)
                continue
            end = end or lines.index(b"\n", at) + 1  # the line is longer than a part
            here = part_path(path, log.part)
            placed.text[here] = placed.text.get(here, b"") + mark + lines[at:end]
            log.size_bytes += len(mark) + end - at
            at = end

    def _remove(self, part: str, placed: Placed) -> None:
        placed.text.pop(part, None)
        placed.outdated.append(part)


def _mark(part: int, lines: bytes, at: int) -> bytes:
    """Return the first line of a part, with the time of the line that follows it."""
    text = f"part {part + 1} of this log: of its parts the first and the newest {NEWEST} are kept"
    return b" ".join((lines[at : lines.index(b" ", at)], OURS.encode(), text.encode())) + b"\n"


def part_path(path: str, part: int) -> str:
    """Return the path of a part of a log; ``path``: the path of its first part, number 0."""
    return path if part == 0 else f"{path.removesuffix('.log')}.{part}.log"
