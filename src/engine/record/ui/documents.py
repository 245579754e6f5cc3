"""The pages as HTML: the page of a run, the list of runs, short messages, and links to files for download.

All text is escaped. A browser can download, but not show, the traces of profiles and the artifacts of a record. Only
regular files in these two folders of the record are sent, whatever path the address or the record contains.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..profiles import PROFILES
from ..report.contents import Contents
from ..report.markup import table, text
from ..report.overview import WORDS, state_of
from ..report.page import CURVES_BY, NAMES, OVERVIEW, Document, PageParts, document
from ..report.sections import Link, section
from ..run_tables import COLUMNS
from ..runs.logged import ARTIFACT_FOLDER
from ..runs.reader import Run

ACTS = (
    ("stacks", "Stacks"),
    ("profile", "Profile"),
    ("stop", "Stop the run"),
)  # (name of the request to the run's program, text of its button)


def run_document(contents: Contents, parts: PageParts, cursor: str) -> str:
    """Return the HTML page of a run.

    ``cursor``: the position in the stream of updates from which the page's script continues; "": the page will not
    change.
    """
    run = contents.run
    empty = {name: f'<section id="{name}" hidden></section>' for name in (OVERVIEW, *NAMES)}
    links = "".join(
        f'<a href="#{name}"{"" if parts.sections[name] else " hidden"}>{title}</a>' for name, title in NAMES.items()
    )
    acts = "".join(f'<button type="button" data-act="{name}">{title}</button>' for name, title in ACTS)
    live: dict[str, Any] = {"live": _live(f"/runs/{run.id}", cursor)} if cursor else {}
    return _page(
        title=f"{run.name}: {WORDS[state_of(contents)]} - Outrider",
        main="\n".join(parts.sections[name] or html for name, html in empty.items()),
        links=f'<a href="/">All runs</a>{links}',
        buttons=f'{_LINK}<span id="acts">{acts}</span>' if cursor else "",
        footer=f'The record is in <span class="mono">{text(str(run.directory))}</span>. {CURVES_BY}',
        data=parts.data | live,
    )


def runs_document(rows: str, cursor: str) -> str:
    """Return the HTML page with the list of runs.

    ``rows``: the result of `runs_section`. ``cursor``: the position in the stream of updates.
    """
    return _page(
        title="Runs - Outrider",
        main=rows,
        links="",
        buttons=_LINK,
        footer="The runs that have left a record on this computer.",
        data={"seconds": 0, "charts": {}, "arrays": [], "live": _live("", cursor)},
    )


def runs_section(rows: Sequence[Sequence[str]], folder: str) -> str:
    """Return the list of runs as HTML.

    ``rows``: the cells of each run, as plain text; the first cell is the run's id.
    """
    if not rows:
        return section("runs", "Runs", f'<p class="note">No runs in {text(folder)}.</p>')
    cells = [(f'<a href="/runs/{text(row[0])}">{text(row[0])}</a>', *map(text, row[1:])) for row in rows]
    shown = table(COLUMNS, cells, caption="Runs", numbers=(2, 3, 4))
    return section("runs", "Runs", shown, note=f"{len(rows):,} in {folder}, the newest first")


def plain_document(title: str, message: str, *, to: str = "") -> str:
    """Return a page with a short message. ``to``: a path of this server to which the page redirects at once."""
    follows = f'<meta http-equiv="refresh" content="0; url={text(to)}">' if to else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>{follows}'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"></head>'
        f"<body><h1>{text(title)}</h1><p>{text(message)}</p></body></html>\n"
    )


_LINK = '<output id="told" class="note"></output><span id="link" class="note">not connected</span>'


def _live(path: str, cursor: str) -> dict[str, str]:
    return {"path": path, "from": cursor}


def _page(*, title: str, main: str, links: str, buttons: str, footer: str, data: dict[str, Any]) -> str:
    return document(
        Document(
            title=title,
            main=main,
            links=links,
            footer=f"Outrider {text(version('outrider'))}. {footer}",
            data=data,
            home="/",
            buttons=buttons,
            more_style=_asset("live.css"),
            more_script=_asset("live.js"),
            connects=True,
        )
    )


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


_KINDS = {  # folder -> (pattern of file names, media type)
    PROFILES: (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.json\.gz"), "application/gzip"),
    ARTIFACT_FOLDER: (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*"), "application/octet-stream"),
}


def media_type(path: str) -> str | None:
    """Return the media type of a file, given its path in the record; None: the file must not be downloaded."""
    folder, _, name = path.partition("/")
    names, kind = _KINDS.get(folder, (None, None))
    return kind if names is not None and names.fullmatch(name) else None


def is_there(run: Run, path: str) -> bool:
    """Return whether ``path`` is a regular file in the record, reached without symbolic links."""
    try:
        folder, file = os.lstat((run.directory / path).parent), os.lstat(run.directory / path)
    except OSError:
        return False
    return stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(file.st_mode)


def links_of(run: Run) -> Link:
    """Return a function that maps the path of a file in the record to its address; None: no download."""

    def link(path: str) -> str | None:
        return f"/runs/{run.id}/{path}" if media_type(path) else None

    return link
