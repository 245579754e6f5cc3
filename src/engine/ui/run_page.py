"""The page of an open run: the whole page, and messages with what has changed since the last message."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from ..report.charts import Chart, sample_charts
from ..report.contents import read_contents
from ..report.figures import chart_data, figure, short, summary
from ..report.overview import state_of
from ..report.page import NAMES, OVERVIEW, PageParts, SectionSource, parts_of, section_of
from ..report.sections import MOST_FIGURES, log_line
from ..report.timeline import timeline_of
from ..runs.reader import Printed, Run
from .documents import run_document
from .downloads import links_of
from .live_charts import Change, LiveCharts
from .record_follower import RecordFollower
from .throttle import Throttle
from .updates import Updates

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
