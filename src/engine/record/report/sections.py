"""The sections of a report as HTML: timeline, metrics, nodes, logs, stacks, profiles, and further data of the
record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

from ....actors import events as ev
from ...api.quantities import count
from ..display.descriptions import describe
from ..profiles import PROFILES
from ..run_tables import HEAD, Use
from ..runs.lines import OURS, LogLine
from .charts import Chart
from .contents import Contents, Excerpt, first_failed, json_text
from .markup import figure, fold, line, number, size_text, table, text
from .overview import program_facts
from .timeline import GOOD, MOST_MARKS, Row, Timeline, clock, gantt, grouped, key, shown_nodes, span_words

MOST_EVENTS, MOST_SPANS, MOST_FIGURES, MOST_TEXTS, MOST_ARTIFACTS, MOST_PARAMS = 400, 400, 60, 100, 300, 500
MOST_LOGS, MOST_PROFILES = 16, 30
TEXT_CHARS = 16 * 1024
FILTER_FROM = 8  # a page with at least this many charts has a filter field
OPEN = 16  # the table with the nodes' use is unfolded if it has at most this many rows
_ABSENT = re.compile(r"(^/|^~|(^|/)\.\.(/|$))")

Link = Callable[[str], str | None]  # path in the record -> address for links; None: the page cannot link to it


def timeline_section(line_: Timeline, events: Sequence[ev.Event]) -> str:
    if not line_.rows:
        return section("timeline", "Timeline", '<p class="note">No node was asked for.</p>')
    described = [(event, words) for event in events if (words := describe(event)) is not None]
    parts = [key(line_), gantt(line_)]
    if described:
        rows = [
            (f"{text(clock(max(0.0, event.at - line_.began_at)))}", line(words))
            for event, words in described[-MOST_EVENTS:]
        ]
        left = len(described) - len(rows)
        note = f"the last {len(rows):,} of {len(described):,}" if left else f"{len(rows):,}"
        parts.append(fold("Events in words", table(("at", "what"), rows, caption="Events", numbers=(0,)), note=note))
    parts.append(fold("The timeline as a table", _spans(line_)))
    if tasks := _tasks(line_):
        parts.append(fold("Calls by function", tasks))
    note = "drag to look closer, double-click to see all"
    return section("timeline", "Timeline", "".join(parts), note=note)


def metrics_section(charts: Sequence[Chart]) -> str:
    if not charts:
        return section(
            "metrics", "Metrics", '<p class="note">The run logged none: <code>log_metrics</code> adds them.</p>'
        )
    controls = '<div class="controls" data-for="metrics">'
    if len(charts) > FILTER_FROM:
        controls += '<label class="field"><span class="hidden">Show metrics whose name has</span>'
        controls += '<input type="search" class="filter" placeholder="Filter by name" autocomplete="off"></label>'
    if any(chart.by_step for chart in charts):
        controls += _switch("axis", "Horizontal axis", (("step", "by step"), ("time", "by time")))
    controls += _switch("scale", "Vertical axis", (("linear", "linear"), ("log", "logarithmic"))) + "</div>"
    figures = "".join(figure(chart, f"m{place}") for place, chart in enumerate(charts[:MOST_FIGURES]))
    left = charts[MOST_FIGURES:]
    names = text(", ".join(each.name for each in islice(left, 50)))
    more = f'<p class="note">{len(left):,} more are in metrics.jsonl: {names}.</p>'
    return section("metrics", "Metrics", f'{controls}<div class="figures-grid">{figures}</div>{more if left else ""}')


def system_section(charts: Sequence[Chart], use: Use) -> str:
    """Return the section with the charts of samples of nodes.

    ``use``: how much of the nodes was used, by the provider's accounting.
    """
    html = "".join(f'<p class="note">{line(each)}</p>' for each in use.sentences)
    if use.rows:
        rows = [tuple(map(line, row)) for row in use.rows]
        html += fold("How well each node was used", table(HEAD, rows, caption="Use of nodes"), opened=len(rows) <= OPEN)
    if not charts:
        return section("system", "Nodes", html) if html else ""
    figures = "".join(figure(chart, f"s{place}") for place, chart in enumerate(charts))
    names = {chart.name for chart in charts}
    note = "" if "GPUs" in names else '<p class="note">No node has reported a GPU.</p>'
    grid = f'<div class="figures-grid small">{figures}</div>{note}{html}'
    return section("system", "Nodes", grid, note="on the time axis of the timeline")


def logs_section(contents: Contents) -> str:
    if not contents.logs:
        return section("logs", "Logs", '<p class="note">Nothing was printed.</p>')
    search = (
        '<div class="controls"><label class="field"><span class="hidden">Search in logs</span>'
        '<input type="search" id="search" placeholder="Search in logs" autocomplete="off"></label>'
        '<output id="found" class="note" for="search"></output></div>'
    )
    # unfold the first log if it is the only log, or the log of the rank that failed first
    alone = len(contents.logs) == 1 or bool(first_failed(contents.result))
    folds = [_log(each, contents.began, opened=alone and not place) for place, each in enumerate(contents.logs)]
    shown, left = "".join(folds[:MOST_LOGS]), ""
    if len(folds) > MOST_LOGS:
        shown += fold(f"{len(folds) - MOST_LOGS:,} more logs", "".join(folds[MOST_LOGS:]), kind="more-logs")
    if contents.logs_left:
        names = ", ".join(islice(contents.logs_left, 20)) + (", and others" if len(contents.logs_left) > 20 else "")
        left = f'<p class="note">{count(len(contents.logs_left), "more log")} in the record: {text(names)}.</p>'
    return section("logs", "Logs", f"{search}{shown}{left}", note="by rank of broadcasts, or by node")


def stacks_section(contents: Contents) -> str:
    if not contents.stacks:
        return ""
    folds = "".join(
        fold(name, f'<pre class="trace" tabindex="0">{text(stack)}</pre>') for name, stack in contents.stacks
    )
    return section("stacks", "Stacks", folds, note="what every thread did when somebody asked")


def profiles_section(contents: Contents, link: Link) -> str:
    """Return the section with the newest profiles. Only the newest profile is unfolded."""
    folds = []
    for place, each in enumerate(contents.profiles[: -MOST_PROFILES - 1 : -1]):
        name = str(each.get("name", ""))
        lines = [str(remark) for remark in each["said"] if not str(remark).startswith("trace: ")]
        trace = f"{PROFILES}/{name}.json.gz" if each.get("trace") else ""
        opened = f'<p>Trace: {_linked(trace, link)}, for <span class="mono">ui.perfetto.dev</span></p>' if trace else ""
        content = f'<pre class="trace" tabindex="0">{text(chr(10).join(lines))}</pre>{opened}'
        folds.append(fold(name, content, opened=not place, note=str(each.get("function", ""))))
    note = "how long each rank is inside of collectives, and outside"
    return section("profiles", "Profiles", "".join(folds), note=note) if folds else ""


def record_section(contents: Contents, link: Link) -> str:
    parts = [program_facts(contents)]
    if contents.params:
        rows = [
            (f"<code>{line(name)}</code>", f"<code>{line(_value(value))}</code>")
            for name, value in islice(sorted(contents.params.items()), MOST_PARAMS)
        ]
        parts.append(
            fold(
                "Parameters",
                table(("name", "value"), rows, caption="Parameters"),
                opened=True,
                note=f"{len(contents.params):,}",
            )
        )
    if contents.artifacts:
        listed = [_artifact(each, contents.began, link) for each in contents.artifacts[-MOST_ARTIFACTS:]]
        head = ("artifact", "from", "at", "size", "SHA-256")
        parts.append(
            fold(
                "Artifacts",
                table(head, listed, caption="Artifacts", numbers=(2, 3)),
                opened=True,
                note=f"{len(contents.artifacts):,}",
            )
        )
    if contents.texts:
        parts.append(fold("Texts", "".join(_texts(contents)), note=f"{len(contents.texts):,}"))
    parts += [
        fold(title, _mapping(value, title))
        for title, name in (("Versions", "versions"), ("Seeds", "seeds"))
        if (value := contents.about.get(name))
    ]
    if value := contents.about.get("spec"):
        parts.append(fold("Settings of the pool", f'<pre class="plain" tabindex="0">{text(json_text(value))}</pre>'))
    if contents.files:
        rows = [(_linked(path, link), text(size_text(size))) for path, size in contents.files if path != "report.html"]
        parts.append(fold("Files of the record", table(("file", "size"), rows, caption="Files", numbers=(1,))))
    return section("record", "Record", "".join(parts))


def section(name: str, title: str, content: str, *, note: str = "") -> str:
    extra = f'<p class="note">{text(note)}</p>' if note else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><header><h2 id="{name}-title">{text(title)}</h2>{extra}'
        f"</header>{content}</section>"
    )


def _switch(name: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    buttons = "".join(
        f'<button type="button" data-{name}="{value}" aria-pressed="{"true" if not place else "false"}">{word}</button>'
        for place, (value, word) in enumerate(options)
    )
    return f'<div class="switch" role="group" aria-label="{label}">{buttons}</div>'


def _spans(line_: Timeline) -> str:
    shown = shown_nodes(line_.nodes)
    rows: list[tuple[str, ...]] = []
    for row in [*line_.rows[: line_.broadcasts], *shown.rows]:
        name = text(row.name)
        rows += [
            (name, line(span_words(span)), text(clock(span.begin_s)), text(clock(span.end_s))) for span in row.spans
        ]
        rows += [
            (name, line(mark.text), text(clock(mark.at_s)), "")
            for mark in grouped(row.marks, line_.seconds / MOST_MARKS)
        ]
    note = f'<p class="note">{len(rows) - MOST_SPANS:,} more are in events.jsonl.</p>' if len(rows) > MOST_SPANS else ""
    return table(("row", "what", "from", "to"), rows[:MOST_SPANS], caption="The timeline", numbers=(2, 3)) + note


def _tasks(line_: Timeline) -> str:
    """Return a table of the durations of recorded calls, by function."""
    took: dict[str, list[float]] = {}
    bad: dict[str, int] = {}
    for span in (span for row in line_.nodes for span in row.work if span.kind == "task"):
        took.setdefault(span.text, []).append(span.end_s - span.begin_s)
        bad[span.text] = bad.get(span.text, 0) + (span.fate not in GOOD)
    rows = [
        (line(name or "task"), f"{len(each):,}", f"{bad[name]:,}", f"{_median(each):.3g} s", f"{max(each):.3g} s")
        for name, each in sorted(took.items())
    ]
    if not rows:
        return ""
    return table(
        ("function", "recorded attempts", "failed", "median", "longest"), rows, caption="Calls", numbers=(1, 2, 3, 4)
    )


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _log(each: Excerpt, began: float, *, opened: bool) -> str:
    body = "".join(log_line(entry, began) for entry in each.head)
    if each.left_out_bytes:
        left = size_text(each.left_out_bytes)
        body += (
            f'<b class="cut">{left} are left out here: they are in logs/{text(each.names[0])} and what follows it</b>\n'
        )
        body += "".join(log_line(entry, began) for entry in each.tail)
    lines_ = count(len(each.head) + len(each.tail), "line") if not each.left_out_bytes else size_text(each.size_bytes)
    content = f'<pre class="log" tabindex="0" data-log="{text(each.title)}">{body}</pre>'
    return fold(each.title, content, kind="log-fold", opened=opened, note=lines_)


def log_line(entry: LogLine, began: float) -> str:
    """Return a line of a log as HTML. Its time is shown relative to the run's beginning."""
    at = f"<time>{_since(entry.at, began)}</time>"
    words = line(entry.text)
    if entry.stream == OURS:
        return f"{at}<b>{words}</b>\n"
    return f"{at}<i>{words}</i>\n" if entry.stream == "stderr" else f"{at}{words}\n"


def _since(at: str, began: float) -> str:
    from datetime import datetime

    try:
        return f"{datetime.fromisoformat(at).timestamp() - began:9.2f}"
    except ValueError:
        return " " * 9


def _value(value: Any) -> str:
    if isinstance(value, float):
        return number(value) if math.isfinite(value) and abs(value) >= 1e-4 else repr(value)
    return value if isinstance(value, str) else json_text(value)


def _mapping(content: Any, title: str) -> str:
    if not isinstance(content, Mapping):
        return f"<p>{line(content)}</p>"
    rows = [(f"<code>{line(name)}</code>", line(_value(value))) for name, value in content.items()]
    return table(("name", "value"), rows, caption=title)


def _artifact(each: Mapping[str, Any], began: float, link: Link) -> tuple[str, ...]:
    size, at = each.get("size_bytes"), each.get("at")
    return (
        _linked(str(each.get("path", "")), link, str(each.get("name", ""))),
        text(_origin(each)),
        text(clock(at - began)) if isinstance(at, int | float) else "",
        text(size_text(size)) if isinstance(size, int | float) else "",
        f"<code>{text(str(each.get('sha256', ''))[:12])}</code>",
    )


def _origin(each: Mapping[str, Any]) -> str:
    rank, node = each.get("rank"), each.get("node")
    place = f"rank {rank}" if rank is not None else f"node {node}" if node is not None else "the program"
    function = str(each.get("function") or "")
    return f"{function}, {place}" if function else place


def _linked(path: str, link: Link, name: str = "") -> str:
    """Return an HTML link to ``path`` if the file is in the record, otherwise only its name."""
    where = None if _ABSENT.search(path) or not path else link(path)
    label = line(name or path)
    return f'<a href="{text(quote(where))}">{label}</a>' if where else f"<span>{label}</span>"


def _texts(contents: Contents) -> Iterator[str]:
    for each in contents.texts[-MOST_TEXTS:]:
        content, step = str(each.get("text", "")), each.get("step")
        at = f"step {step}" if step is not None else ""
        note = ", ".join(filter(None, (_origin(each), at)))
        cut = content if len(content) <= TEXT_CHARS else f"{content[:TEXT_CHARS]} (the rest is in texts.jsonl)"
        yield fold(str(each.get("name", "text")), f'<pre class="plain" tabindex="0">{text(cut)}</pre>', note=note)


def rows_of(line_: Timeline) -> Sequence[Row]:
    return line_.rows
