"""Pieces of short HTML for notebooks, without scripts and style sheets; and the pages that consist of one line.

The HTML is readable on a light and on a dark background. Notebooks that are not trusted, and web pages that show saved
notebooks, remove scripts, CSS classes and images. So the HTML consists of simple elements with the few inline styles
that are not removed. Text has the notebook's own colour; only the dots that show a state have colours of this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .printable import one_line

LINE_CHARS = 300
# each colour has a contrast of at least 3:1 on white and on black
READY, COMING, WARNING, BAD, QUIET = "#1f8f5f", "#2f80c0", "#b7791f", "#d14a2b", "#7a8288"
JOB_COLOURS = {"under way": COMING, "returned": READY, "failed": BAD}
DIM = 'style="opacity:.75"'


def simple_page(what: str, described: str) -> str:
    return page([line(f"<b>{text(what)}</b> {text(described)}")])


def job_page(function: str, job: int, state: str) -> str:
    """Return the HTML of a job. ``state``: "under way", "returned", "failed" or "cancelled"."""
    return page([line(f"{dot(JOB_COLOURS.get(state, QUIET))}<b>job {job}</b> {text(f'{function}: {state}')}")])


def page(parts: Iterable[str]) -> str:
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def line(content: str, *, dim: bool = False) -> str:
    return f"<div {DIM}>{content}</div>" if dim else f"<div>{content}</div>"


def dot(colour: str) -> str:
    return f'<span style="color:{colour}">●</span> '


def text(value: str, most: int = LINE_CHARS) -> str:
    content = one_line(value)
    return escape(content if len(content) <= most else f"{content[: most - 3]}...")
