"""The report of a run as one HTML file. It loads no other file, and no text in it can be executed as code."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from ....lazy_dataclass import dataclass
from ..run_tables import use_of
from ..runs.reader import Run
from .charts import Chart, metric_charts, sample_charts
from .contents import Contents, read_contents
from .markup import data, script_json, text
from .overview import WORDS, head, state_of
from .sections import (
    MOST_FIGURES,
    Link,
    logs_section,
    metrics_section,
    profiles_section,
    record_section,
    stacks_section,
    system_section,
    timeline_section,
)
from .timeline import Timeline, timeline_of

REPORT = "report.html"
STYLES, SCRIPTS = ("uPlot.min.css", "page.css"), ("uPlot.iife.min.js", "page.js")
LICENCE = "uPlot.LICENSE"  # the licence requires this text in every copy
OVERVIEW = "overview"
ASKS = "connect-src 'self'; "
CURVES_BY = "Curves: uPlot, Copyright (c) 2022 Leon Sorokin, MIT License."
NAMES = {
    "timeline": "Timeline",
    "metrics": "Metrics",
    "system": "Nodes",
    "logs": "Logs",
    "stacks": "Stacks",
    "profiles": "Profiles",
    "record": "Record",
}
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' "
    "rx='4' fill='%230b5c8a'/%3E%3Cpath d='M3 5h6M5 8h8M4 11h5' stroke='white' stroke-width='1.6'/%3E%3C/svg%3E"
)


def write_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of ``run``. Return the report's path.

    ``path``: the file to write; None: in the run's record.

    Raises:
        OSError: The report cannot be written there.
    """
    target = run.directory / REPORT if path is None else path
    content = page(read_contents(run), _links(run.directory, target.parent)).encode(errors="replace")
    if path is not None and is_no_file_of_its_own(path):
        path.write_bytes(content)
        return path
    new = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(file, "wb") as opened:  # noqa: PTH123  opens a descriptor
            opened.write(content)
        new.rename(target)
    finally:
        new.unlink(missing_ok=True)
    return target


def is_no_file_of_its_own(path: Path) -> bool:
    """Return whether ``path`` must not be replaced by a new file: a link such as /dev/stdout, a device, a pipe."""
    return path.is_symlink() or (path.exists() and not path.is_file())


@dataclass(frozen=True, slots=True)
class PageParts:
    """The parts of a run's page. ``sections``: name -> HTML, in the order of the page; "": the section is left out."""

    sections: Mapping[str, str]
    metrics: Sequence[Chart]
    system: Sequence[Chart]
    seconds: float

    @property
    def data(self) -> dict[str, Any]:
        """The points of all charts, as JSON values."""
        return data(self.metrics[:MOST_FIGURES], self.system, self.seconds)


def parts_of(
    contents: Contents,
    link: Link = lambda path: path,
    metrics: Sequence[Chart] | None = None,
    system: Sequence[Chart] | None = None,
) -> PageParts:
    """Return the parts of a run's page.

    Args:
        contents: The contents of the run's record.
        link: Returns the address of a file of the record.
        metrics: The charts of metrics; None: make them from ``contents``.
        system: The charts of samples; None: make them from ``contents``.
    """
    metrics = metric_charts(contents.metrics, contents.began) if metrics is None else metrics
    system = sample_charts(contents.samples, contents.began) if system is None else system
    line = timeline_of(contents.events, contents.began, contents.ended, contents.checkpoints)
    source = SectionSource(contents, line, metrics, system, link)
    return PageParts({name: section_of(name, source) for name in (OVERVIEW, *NAMES)}, metrics, system, line.seconds)


class SectionSource(NamedTuple):
    """The data for the sections of a page. ``line``: the timeline; None: its section is not needed."""

    contents: Contents
    line: Timeline | None
    metrics: Sequence[Chart]
    system: Sequence[Chart]
    link: Link


def section_of(name: str, source: SectionSource) -> str:  # noqa: PLR0911  a table
    """Return the HTML of a section; "": the record has no data for it."""
    contents = source.contents
    match name:
        case "timeline":
            return "" if source.line is None else timeline_section(source.line, contents.events)
        case "metrics":
            return metrics_section(source.metrics)
        case "system":
            return system_section(source.system, use_of(contents.events))
        case "logs":
            return logs_section(contents)
        case "stacks":
            return stacks_section(contents)
        case "profiles":
            return profiles_section(contents, source.link)
        case "record":
            return record_section(contents, source.link)
    return f'<section id="{OVERVIEW}" aria-label="Overview">{head(contents)}</section>'


def page(contents: Contents, link: Link = lambda path: path) -> str:
    """Return the HTML of the whole report. ``link``: returns the address of a file of the record."""
    parts = parts_of(contents, link)
    producer = (
        f"Made by Outrider {text(version('outrider'))} from the record of "
        f'<span class="mono">{text(contents.run.id)}</span>. This file loads nothing from anywhere.'
    )
    return document(
        Document(
            title=f"{contents.run.name}: {WORDS[state_of(contents)]} - Outrider report",
            main="\n".join(filter(None, parts.sections.values())),
            links=section_links(parts),
            footer=f"{producer} {CURVES_BY}",
            data=parts.data,
        )
    )


def section_links(parts: PageParts) -> str:
    return "".join(f'<a href="#{name}">{title}</a>' for name, title in NAMES.items() if parts.sections[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An HTML page. ``title`` is plain text; ``main``, ``links``, ``buttons`` and ``footer`` are HTML.

    ``more_style`` and ``more_script``: added to the style and script of all pages. ``connects``: True: the script may
    send requests to the server of the page.
    """

    title: str
    main: str
    links: str
    footer: str
    data: Mapping[str, Any]
    home: str = "#main"
    buttons: str = ""
    more_style: str = ""
    more_script: str = ""
    connects: bool = False


def document(content: Document) -> str:
    """Return the HTML of a page. It loads no other file, and runs only its own script and style."""
    style = "\n".join([*map(asset, STYLES), *filter(None, [content.more_style])])
    script = "\n".join([f"/*!\n{asset(LICENCE)}*/", *map(asset, SCRIPTS), *filter(None, [content.more_script])])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script, connects=content.connects)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="{_ICON}">\n'
        f"<title>{text(content.title)}</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">To the report</a>\n'
        '<div class="bar"><nav aria-label="Sections">'
        f'<a class="mark" href="{text(content.home)}"><i aria-hidden="true"></i>outrider</a>'
        f'<span class="links">{content.links}</span></nav>'
        f'{content.buttons}<button type="button" id="theme" hidden>Dark</button></div>\n'
        f'<main id="main">\n{content.main}'
        '\n<noscript><p class="note">Curves are drawn by a script, which is off here. The tables have their figures.'
        f"</p></noscript>\n</main>\n<footer><p>{content.footer}</p></footer>\n"
        f'<script type="application/json" id="data">{script_json(content.data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def policy(style: str, script: str, *, connects: bool = False) -> str:
    """Return a Content-Security-Policy that allows only this script and this style, and no loading of other files.

    ``connects``: True: the script may send requests to the server of the page, but to no other server.
    """
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        f"{ASKS if connects else ''}base-uri 'none'; form-action 'none'"
    )


@cache
def asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _links(record: Path, folder: Path) -> Link:
    record, folder = record.absolute(), folder.absolute()

    def link(path: str) -> str | None:
        return os.path.relpath(record / path, folder) if (record / path).exists() else None

    return link
