"""The two pages that are updated while a browser shows them: an open run, and the list of all runs of this computer.

`RecordFollower` reads what was added to a run's record since its last call. `RunPage` makes the whole page of the run,
and then messages with what has changed since the last message. `Throttle` makes pauses between updates, so that they
use at most a tenth of one CPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....actors import events as ev
from ..profiles import PROFILES, merged_profiles
from ..report.charts import Chart, sample_charts
from ..report.contents import (
    ARTIFACTS,
    PARAMS,
    STACKS,
    TEXTS,
    Contents,
    Excerpt,
    content_of,
    excerpts,
    files_in,
    logs_of,
    read_contents,
    stacks_in,
)
from ..report.markup import chart_data, figure, short, summary
from ..report.overview import state_of
from ..report.page import NAMES, OVERVIEW, PageParts, SectionSource, parts_of, section_of
from ..report.sections import MOST_FIGURES, log_line
from ..report.timeline import timeline_of
from ..run_tables import cells
from ..runs.lines import EVENTS, LOGS, SampleFile, SavedCheckpoint, events_in, parsed_events, saved_checkpoints
from ..runs.metrics import METRICS, Logged, metrics_in
from ..runs.reader import Logs, Owned, Printed, Run, at_present, read_json, runs_in
from .documents import links_of, run_document, runs_document, runs_section
from .live_charts import Change, LiveCharts
from .watching import Updates

PART = 0.1  # largest fraction of one CPU that a throttled activity may use


class Throttle:
    """The throttle of one repeated activity.

    ``least_s``: the shortest time from one beginning of the activity to the next, in seconds.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next = 0.0

    def due(self, now: float) -> bool:
        return now >= self._next

    def done(self, began: float, ended: float) -> None:
        """Record when the latest run of the activity began and ended."""
        self._next = max(began + self._least_s, ended + (ended - began) * (1 / PART - 1))


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


LEAST_S = {OVERVIEW: 1.0, "timeline": 0.5, "metrics": 0.2, "system": 0.5, "logs": 2.0}
LEAST_S |= {"stacks": 1.0, "profiles": 1.0, "record": 2.0}
# seconds between two checks of: the status, the small files, the samples, the logs
STATE_S, SMALL_S, SAMPLES_S, LOGS_S = 1.0, 1.0, 0.5, 0.2
TABLES_S = 10.0  # seconds between two updates of the tables below charts with new points
RENEW_S = 0.1  # one call of `look` renews charts for at most about this many seconds
APPENDED = 256 * 1024  # most characters of log lines in one message
# Most characters of log lines that messages append to a page. After that, a message replaces all logs by excerpts.
APPENDED_IN_ALL = 1 << 20
GROWN = 200  # the timeline is drawn again if the run's time has grown by more than 1/200 (and by more than `GROWN_S`)
GROWN_S = 2.0  # seconds by which the run's time must grow before the timeline is drawn again


class RunPage:
    """The page of an open run.

    Only one thread at a time may use it. ``over``: True: the page will not change any more.
    """

    def __init__(self, run: Run, name: str) -> None:
        """Read the run's record. ``name``: the name of the page's stream of updates."""
        self.updates = Updates(name)
        self.over = False
        self._follower = follower = RecordFollower(run)
        self._link = links_of(run)
        follower.read_state()
        follower.read_small()
        while follower.read_events():
            pass
        follower.read_samples()
        follower.read_logs()
        self._began = follower.contents().began
        self._charts = LiveCharts(self._began)
        while lines := follower.read_metrics():
            self._charts.add(lines)
        self._charts.renew()
        self._charts.taken()
        self._system: list[Chart] = sample_charts(follower.samples, self._began)
        self._throttles = {name: Throttle(least_s) for name, least_s in LEAST_S.items()}
        self._looks = {name: Throttle(s) for name, s in
                       {"state": STATE_S, "small": SMALL_S, "samples": SAMPLES_S, "logs": LOGS_S}.items()}  # fmt: skip
        self._tables_due = time.monotonic() + TABLES_S
        self._dirty: set[str] = set()
        self._shown: dict[str, str] = {}
        self._titles: set[str] = set()  # titles of the logs that are on the page
        self._appended = 0
        self._drawn_at = 0.0  # the run's time in seconds when the timeline was last drawn
        self._whole: tuple[str, PageParts] | None = None
        self.parts()

    def parts(self) -> PageParts:
        """Return the whole page, with all changes that messages have reported."""
        if self.over:
            return parts_of(read_contents(self._follower.run), self._link)
        if self._whole is None or self._whole[0] != self.updates.newest:
            logs = self._follower.log_excerpts()
            contents = self._follower.contents(logs, files=True)
            self._whole = self.updates.newest, parts_of(contents, self._link, self._charts.charts, self._system)
            if not self._shown:
                self._shown = dict(self._whole[1].sections)
                self._titles = {each.title for each in logs[0]}
        return self._whole[1]

    def html(self) -> str:
        parts = self.parts()
        return run_document(self._follower.contents(), parts, "" if self.over else self.updates.newest)

    def whole(self) -> bytes:
        message = {**whole_message(self.parts()), "state": state_of(self._follower.contents())}
        return json.dumps(message | {"end": True} if self.over else message, separators=(",", ":")).encode()

    def look(self) -> bool:
        """Read what was added to the record.

        If the page changes, add a message to the stream of updates and return True.
        """
        message: dict[str, Any] = {}
        self._read(message)
        if self.over:
            message = {**whole_message(self.parts()), "end": True}
        else:
            self._metrics(message)
            self._sections(message)
        if message:
            contents = self._follower.contents()
            message["seconds"] = round(max(contents.ended - contents.began, 0.001), 3)
            message["state"] = state_of(contents)
            self.updates.add(json.dumps(message, separators=(",", ":")).encode())
        return bool(message)

    def _read(self, message: dict[str, Any]) -> None:
        follower, due = self._follower, self._due
        if due("state"):
            follower.read_state()
            self._dirty.add(OVERVIEW)
        if follower.over:
            self.over = True
            return
        self._charts.add(follower.read_metrics())
        if follower.read_events():
            self._dirty.add("timeline")
        if due("samples") and follower.read_samples():
            self._dirty.add("system")
        if due("small") and follower.read_small():
            self._dirty |= {OVERVIEW, "stacks", "profiles", "record"}
        if due("logs") and (lines := follower.read_logs()):
            self._append(lines, message)
        age_s = follower.contents().ended - self._began
        if age_s - self._drawn_at > max(GROWN_S, age_s / GROWN):
            self._dirty.add("timeline")

    def _due(self, name: str) -> bool:
        """Return whether the check ``name`` is due. If so, the time until its next check begins now."""
        now = time.monotonic()
        if not self._looks[name].due(now):
            return False
        self._looks[name].done(now, now)
        return True

    def _append(self, lines: Sequence[Printed], message: dict[str, Any]) -> None:
        """Add log lines to the message. If the page cannot append them, all logs are sent again later."""
        if "logs" in self._dirty:
            return
        size = sum(len(line.text) for line, _ in lines)
        self._appended += size
        if size > APPENDED or self._appended > APPENDED_IN_ALL or not {of for _, of in lines} <= self._titles:
            self._dirty.add("logs")
            return
        by_origin: dict[str, list[str]] = {}
        for line, origin in lines:
            by_origin.setdefault(origin, []).append(log_line(line, self._began))
        message["logs"] = [{"log": origin, "html": "".join(html)} for origin, html in by_origin.items()]

    def _metrics(self, message: dict[str, Any]) -> None:
        began, throttle = time.monotonic(), self._throttles["metrics"]
        tables = self._charts.grown and began > self._tables_due
        if (self._charts.stale or tables) and throttle.due(began):
            ended, whole = began, True
            for _ in self._charts.renewing(grown=tables):
                ended = time.monotonic()
                if ended > began + RENEW_S:  # stop here, as new points of other charts wait to be sent
                    whole = False
                    break
            throttle.done(began, ended)
            if tables:
                self._tables_due = ended + (TABLES_S if whole else STATE_S)
        if self._charts.fresh and self._charts.stale:
            return  # send nothing until the new charts are renewed
        if self._charts.fresh:
            message.setdefault("sections", {})["metrics"] = section_of("metrics", self._section_source())
        for change in self._charts.taken():
            if change.place < MOST_FIGURES:
                add_change(message, change)

    def _sections(self, message: dict[str, Any]) -> None:
        for name in [name for name in LEAST_S if name in self._dirty]:
            began, throttle = time.monotonic(), self._throttles[name]
            if not throttle.due(began):
                continue
            self._dirty.discard(name)
            if name == "system":
                self._measured(message)
            elif name == "logs":
                self._all_logs(message)
            else:
                self._section(name, message)
            throttle.done(began, time.monotonic())

    def _section(self, name: str, message: dict[str, Any]) -> None:
        html = section_of(name, self._section_source(timeline=name == "timeline", files=name == "record"))
        if html != self._shown.get(name):
            self._shown[name] = message.setdefault("sections", {})[name] = html

    def _measured(self, message: dict[str, Any]) -> None:
        names = [chart.name for chart in self._system]
        self._system = sample_charts(self._follower.samples, self._began)
        if names != [chart.name for chart in self._system]:
            self._section("system", message)
        for place, chart in enumerate(self._system):
            add_chart(message, f"s{place}", chart)

    def _all_logs(self, message: dict[str, Any]) -> None:
        logs = self._follower.log_excerpts()
        self._titles, self._appended = {each.title for each in logs[0]}, 0
        message.pop("logs", None)
        source = SectionSource(self._follower.contents(logs), None, (), (), self._link)
        message.setdefault("sections", {})["logs"] = section_of("logs", source)

    def _section_source(self, *, timeline: bool = False, files: bool = False) -> SectionSource:
        contents, line = self._follower.contents(files=files), None
        if timeline:
            line = timeline_of(contents.events, contents.began, contents.ended, contents.checkpoints)
            self._drawn_at = line.seconds
        return SectionSource(contents, line, self._charts.charts, self._system, self._link)


def whole_message(parts: PageParts) -> dict[str, Any]:
    """Return a message that replaces the whole page."""
    return {"sections": {name: parts.sections[name] for name in (OVERVIEW, *NAMES)}, "data": parts.data}


def add_change(message: dict[str, Any], change: Change) -> None:
    """Add a change of a metric's chart to a message."""
    if change.tails is None:
        add_chart(message, f"m{change.place}", change.chart)
        return
    curves = [
        {
            "i": place,
            "t": [round(at_s * 1000) for at_s in tail.at_s],
            **({"x": tail.steps} if tail.steps else {}),
            "y": [short(value) for value in tail.ys],
        }
        for place, tail in sorted(change.tails.items())
    ]
    message.setdefault("tails", {})[f"m{change.place}"] = {"curves": curves, "note": summary(change.chart)}


def add_chart(message: dict[str, Any], place: str, chart: Chart) -> None:
    """Add a whole chart to a message. ``place``: the chart's key in the page's data."""
    message.setdefault("charts", {})[place] = {"figure": figure(chart, place), **chart_data(chart, place[0])}


LOOK_S = 1.0


class RunsPage:
    """The list of the runs in ``folder``. Only one thread at a time may use it."""

    over = False

    def __init__(self, folder: Path, name: str) -> None:
        """Read the records. ``name``: the name of the page's stream of updates."""
        self.updates = Updates(name)
        self._folder = folder
        self._shown = self._rows()

    def look(self) -> bool:
        rows = self._rows()
        if rows == self._shown:
            return False
        self._shown = rows
        self.updates.add(self.whole())
        return True

    def html(self) -> str:
        return runs_document(self._shown, self.updates.newest)

    def whole(self) -> bytes:
        return json.dumps({"sections": {"runs": self._shown}}).encode()

    def _rows(self) -> str:
        """Return the list of runs as HTML. A folder that cannot be read looks like a folder without runs."""
        try:
            runs = runs_in(self._folder)[::-1]
        except OSError:
            runs = []
        now = time.time()
        return runs_section([cells(run, None if run.ended else run.owner, now) for run in runs], str(self._folder))
