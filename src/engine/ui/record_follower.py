"""Incremental reading of a run's record: each call reads what was added since the last call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...actors import events as ev
from ..profiles.merged import PROFILES, merged_profiles
from ..report.contents import ARTIFACTS, PARAMS, STACKS, TEXTS, Contents, content_of, files_in, logs_of, stacks_in
from ..report.excerpts import Excerpt, excerpts
from ..runs.checkpoints import SavedCheckpoint, saved_checkpoints
from ..runs.event_reading import events_in
from ..runs.lines import EVENTS, LOGS, parsed_events
from ..runs.metrics import METRICS, Logged, metrics_in
from ..runs.reader import Logs, Owned, Printed, Run, at_present, read_json
from ..runs.samples import SampleFile

CHUNK = 4 << 20  # most bytes of a file that one call reads; the next call continues
# files and folders that are read as a whole whenever they change
SMALL = ("run.json", "result.json", PARAMS, TEXTS, ARTIFACTS, STACKS, PROFILES)


class Growing:
    """A file to which another program appends lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new_lines(self) -> bytes:
        """Return the complete lines that were added since the last call, at most `CHUNK` bytes."""
        try:
            if self._path.stat().st_size <= self._read:
                return b""
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._read)
                content = file.read(CHUNK)
        except OSError:
            return b""
        whole = content[: content.rfind(b"\n") + 1]
        # skip a line that is longer than `CHUNK`
        self._read += len(whole) or (len(content) if len(content) == CHUNK else 0)
        return whole


class RecordFollower:
    """The content of a run's record, as far as it has been read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.directory = run.directory
        self.owner: Owned | None = None
        self.events: list[ev.Event] = []
        self.checkpoints: list[SavedCheckpoint] = []
        self.samples: list[ev.NodeSampled] = []
        self._small: dict[str, Any] = {name: {} for name in SMALL}
        self._signs: dict[str, tuple[int, ...]] = {}
        self._event_file = Growing(self.directory / EVENTS)
        self._metric_file = Growing(self.directory / METRICS)
        self._sample_file = SampleFile(self.directory)
        self._logs = Logs(run)

    @property
    def over(self) -> bool:
        """Return whether the record will not change any more."""
        return self.run.ended or self.owner == "dead"

    @property
    def began(self) -> float:
        return self.contents().began

    def read_state(self) -> bool:
        """Read the run's status, and whether its program is alive. Return whether anything has changed."""
        before = (self.owner, self.run.status)
        owner, self.run = at_present(self.run)
        self.owner = None if self.run.ended else owner
        return (self.owner, self.run.status) != before

    def read_metrics(self) -> list[Logged]:
        return list(metrics_in(self._metric_file.new_lines().split(b"\n")[:-1]))

    def read_events(self) -> bool:
        content = self._event_file.new_lines()
        self.events += events_in(content)
        self.checkpoints += saved_checkpoints(content)
        return bool(content)

    def read_samples(self) -> bool:
        before = len(self.samples)
        self.samples += self._sample_file.new_samples()
        return len(self.samples) > before

    def read_logs(self) -> list[Printed]:
        return list(self._logs.new_lines())

    def read_small(self) -> bool:
        """Read again the files that have changed as a whole. Return whether a file has changed."""
        has_changed = False
        for name in SMALL:
            sign = _sign(self.directory / name)
            if sign != self._signs.get(name):
                self._signs[name], has_changed = sign, True
                self._small[name] = self._whole(name)
        return has_changed

    def _whole(self, name: str) -> Any:
        path = self.directory / name
        if name == STACKS:
            return list(stacks_in(path))
        if name == PROFILES:
            return merged_profiles(self.directory)
        return list(parsed_events(content_of(path))) if name in (TEXTS, ARTIFACTS) else read_json(path)

    def log_excerpts(self) -> tuple[Sequence[Excerpt], Sequence[str]]:
        """Return excerpts of the logs that were read so far, with as many bytes as a page has room for."""
        folder = self.directory / LOGS
        return excerpts(folder, logs_of(folder, self.events, self._small["result.json"]), read=self._logs.read_bytes())

    def contents(self, logs: tuple[Sequence[Excerpt], Sequence[str]] = ((), ()), *, files: bool = False) -> Contents:
        """Return everything read so far, in the form for a report, but without metrics.

        ``logs``: the result of `log_excerpts`. ``files``: True: include the list of the record's files.
        """
        return Contents(
            run=self.run,
            owner=self.owner,
            now=time.time(),
            about=self._small["run.json"],
            result=self._small["result.json"],
            events=self.events,
            checkpoints=self.checkpoints,
            metrics={},
            samples=self.samples,
            params=self._small[PARAMS],
            texts=self._small[TEXTS] or [],
            artifacts=self._small[ARTIFACTS] or [],
            logs=logs[0],
            logs_left=logs[1],
            stacks=self._small[STACKS] or [],
            profiles=self._small[PROFILES] or [],
            files=sorted(files_in(self.directory)) if files else (),
        )


def _sign(path: Path) -> tuple[int, ...]:
    """Return numbers that change if the file changes or, for a folder, its list of files."""
    with suppress(OSError):
        status = path.stat()
        return (status.st_ino, status.st_size, status.st_mtime_ns)
    return ()
