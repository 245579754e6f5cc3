"""Reading of records: the runs of a folder, whether their owners are alive, and the output of their tasks.

The owner of a record is the program that writes it.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from ....lazy_dataclass import dataclass
from ....lazy_named_tuple import NamedTuple
from ....providers.shared.pool_lock import Lock, Owner
from ...api.sink import Spending
from .lines import LOGS, LogLine, parsed_log, whole_lines
from .names import name_in

# state of the program that writes a record; "elsewhere": on another computer; "unknown": its lock cannot be read
Owned = Literal["alive", "dead", "elsewhere", "unknown"]
# groups: kind, number, and the number of the log's part (the first part has none)
_LOG = r"(rank|node)-(\d+)(?:\.(\d+))?\.log"
CHUNK = 64 * 1024  # bytes of each log that are read at a time


@dataclass(frozen=True, slots=True)
class Run:
    """One run. ``status``: the content of its `status.json`; {}: the file cannot be read."""

    id: str
    name: str
    directory: Path
    status: dict[str, Any]

    @property
    def ended(self) -> bool:
        return self.status.get("state") == "ended"

    @property
    def owner(self) -> Owned:
        """Return whether the program that writes the record is alive.

        On that program's computer, the record's lock shows this.
        """
        try:
            if Lock.is_taken(self.directory):
                return "alive"
        except OSError:  # the lock cannot be opened: for example, another user's lock in a copied folder
            return "unknown"
        about = read_json(self.directory / "run.json").get("owner")
        with suppress(TypeError):
            if about is not None and not Owner(**about).near(self.directory):
                return "elsewhere"
        return "dead"

    def spent_usd(self, now: float | None = None) -> float | None:
        """Return the cost in USD until ``now`` (unix time), or until the state was written if ``now`` is None.

        None: the cost is unknown.
        """
        if "spent_usd" not in self.status:
            return None
        spending = Spending(
            self.status["spent_usd"], self.status.get("hourly_usd", 0.0), self.status.get("written", now or 0.0)
        )
        return spending.spent if now is None else spending.until(now)


def at_present(run: Run) -> tuple[Owned, Run]:
    """Return the state of the run's owner, and the run, read again after that.

    In this order, the last state that an ending owner writes is not missed.
    """
    owner = run.owner
    return owner, run_of(run.directory)


class Printed(NamedTuple):
    """A line of a log. ``origin``: who printed the line, as "rank 3" or "node 2"."""

    line: LogLine
    origin: str


def runs_in(folder: Path) -> list[Run]:
    """Return all runs in ``folder``, the oldest first.

    Raises:
        OSError: The folder exists, but cannot be read.
    """
    try:
        names = [entry.name for entry in os.scandir(folder) if name_in(entry.name) and entry.is_dir()]
    except FileNotFoundError:
        return []
    return sorted((run_of(folder / name) for name in names), key=lambda run: (run.status.get("began", 0.0), run.id))


def run_of(directory: Path) -> Run:
    status = read_json(directory / "status.json")
    return Run(
        directory.name, name_in(directory.name) or "", directory, {k: v for k, v in status.items() if _fits(k, v)}
    )


_NUMBERS = frozenset({"began", "changed", "written", "spent_usd", "hourly_usd"}) | frozenset(
    {"nodes", "most_nodes", "wanted_nodes", "calls", "finished_calls", "failed_calls"}
)


def _fits(name: str, value: Any) -> bool:
    """Return whether a field of `status.json` has a value of the right type. The file may be damaged or edited."""
    if name in _NUMBERS or (name in ("ended", "exit", "generation") and value is not None):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return True


def runs_meant(wanted: str, runs: Sequence[Run]) -> list[Run]:
    """Return the runs that ``wanted`` means: the run with this id, or else the newest run with this name.

    Otherwise return all runs whose ids begin with ``wanted``.
    """
    if exact := [run for run in runs if run.id == wanted]:
        return exact
    if named := [run for run in runs if run.name == wanted]:
        return named[-1:]
    return [run for run in runs if run.id.startswith(wanted)]


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a record; {}: the file is missing or cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(slots=True)
class Log:
    """One log file of a run, read piece by piece: each call returns the lines that were added since the last call."""

    path: Path
    origin: str
    read_bytes: int = field(default=0)

    def new_lines(self) -> Iterator[Printed]:
        """Yield the complete lines that were added since the last call."""
        at, rest = self.read_bytes, b""
        while chunk := self._chunk(at):
            at += len(chunk)
            content = rest + chunk
            whole = whole_lines(content)
            rest = content[content.rfind(b"\n") + 1 :]
            for line in whole:
                self.read_bytes += len(line) + 1
                if (parsed := parsed_log(line)) is not None:
                    yield Printed(parsed, self.origin)

    def _chunk(self, at: int) -> bytes:
        """Return the next bytes from offset ``at``.

        The file does not stay open, as a run of a thousand ranks has a thousand logs.
        """
        with suppress(FileNotFoundError), self.path.open("rb", buffering=0) as file:
            file.seek(at)
            return file.read(CHUNK)
        return b""


class Logs:
    """The logs of a run, including logs that begin later.

    ``ranks`` and ``nodes``: read only the logs of these ranks and nodes; both None: read all logs.
    """

    def __init__(self, run: Run, ranks: Sequence[int] | None = None, nodes: Sequence[int] | None = None) -> None:
        self._folder = run.directory / LOGS
        self._wanted = (
            None
            if ranks is None and nodes is None
            else {("rank", each) for each in ranks or ()} | {("node", each) for each in nodes or ()}
        )
        self._logs: dict[str, Log] = {}

    def new_lines(self) -> Iterator[Printed]:
        """Yield the lines that were added to any log since the last call, sorted by time."""
        with suppress(OSError):
            matches = [(name, re.fullmatch(_LOG, name)) for name in os.listdir(self._folder)]  # noqa: PTH208  names
            there = sorted((log[1], int(log[2]), int(log[3] or 0), name) for name, log in matches if log)
            self._logs = {
                name: self._logs.get(name) or Log(self._folder / name, f"{kind} {number}")
                for kind, number, _, name in there
                if self._is_wanted(kind, number)
            }
        yield from heapq.merge(*(log.new_lines() for log in self._logs.values()), key=lambda each: each.line.at)

    def origins(self) -> set[tuple[str, int]]:
        """Return the ranks and nodes that have a log, such as ``("rank", 0)``."""
        try:
            found = [re.fullmatch(_LOG, name) for name in os.listdir(self._folder)]  # noqa: PTH208  names
        except OSError:
            return set()
        return {(log[1], int(log[2])) for log in found if log}

    def read_bytes(self) -> dict[str, int]:
        """Return how many bytes of each log file have been read."""
        return {name: log.read_bytes for name, log in self._logs.items()}

    def _is_wanted(self, kind: str, number: int) -> bool:
        return self._wanted is None or (kind, number) in self._wanted
