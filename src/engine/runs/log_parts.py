"""Logs in parts, of which only the first and the newest are kept, as a task may print for days. No I/O.

A log is one file, `rank-000.log`, until that file is large; the log continues in `rank-000.1.log`, `rank-000.2.log` and
so on.

LOGS-1: the concatenated parts of a log are the printed text. Each part has complete lines only, and begins, except for
        the first part, with a line that names the part.
LOGS-2: the first part of a log is kept, and so are its newest `NEWEST` parts, however large other logs are.
LOGS-3: each log keeps at most 1 + `NEWEST` parts of at most `limit` bytes, except for longer lines.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from .lines import OURS

PART_BYTES = 16 * 2**20  # size limit of a part in a record with few logs
ALL_BYTES = 2**30  # approximate limit for the total size of all logs of a record
LEAST_BYTES = 64 * 2**10  # size limit of a part in a record with very many logs
NEWEST = 2  # number of the newest parts of a log that are kept, besides its first part


class Placed(NamedTuple):
    """Changes of files: ``text`` to append to each file, and ``outdated`` files to remove after that."""

    text: dict[str, bytes]
    outdated: list[str]


@dataclass(slots=True)
class _Log:
    part: int = 0  # number of the part that is being written
    size_bytes: int = 0  # size of the part that is being written


class LogParts:
    """The parts of all logs of a record. The path of its first part identifies a log."""

    def __init__(
        self, part_bytes: int = PART_BYTES, all_bytes: int = ALL_BYTES, least_bytes: int = LEAST_BYTES
    ) -> None:
        self._part_bytes, self._all_bytes, self._least_bytes = part_bytes, all_bytes, least_bytes
        self._logs: dict[str, _Log] = {}

    @property
    def limit(self) -> int:
        """The largest size of a part, in bytes: the more logs, the smaller."""
        return min(
            self._part_bytes, max(self._least_bytes, self._all_bytes // ((1 + NEWEST) * max(1, len(self._logs))))
        )

    def place(self, text: Mapping[str, bytes]) -> Placed:
        """Assign new text to the parts of logs.

        ``text``: path of a log -> complete lines that follow the earlier text.
        """
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
            end = end or lines.index(b"\n", at) + 1  # this line is longer than a whole part
            here = part_path(path, log.part)
            placed.text[here] = placed.text.get(here, b"") + mark + lines[at:end]
            log.size_bytes += len(mark) + end - at
            at = end

    def _remove(self, part: str, placed: Placed) -> None:
        placed.text.pop(part, None)
        placed.outdated.append(part)


def _mark(part: int, lines: bytes, at: int) -> bytes:
    """Return the first line of a part. It names the part, and has the time of the next line."""
    text = f"part {part + 1} of this log: of its parts the first and the newest {NEWEST} are kept"
    return b" ".join((lines[at : lines.index(b" ", at)], OURS.encode(), text.encode())) + b"\n"


def part_path(path: str, part: int) -> str:
    """Return the path of part number ``part`` of a log. ``path``: the path of the log's first part, number 0."""
    return path if part == 0 else f"{path.removesuffix('.log')}.{part}.log"
