"""Escaping of text for HTML. Characters that move, hide or reverse other characters are removed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ..api.printable import lines, plain


def text(value: object) -> str:
    """Escape a value for any place in the page, including quoted attributes."""
    return escape(plain(value if isinstance(value, str) else str(value)), quote=True)


def line(value: object) -> str:
    """Escape a value, as one line of text."""
    return escape("; ".join(filter(None, lines(value if isinstance(value, str) else str(value)))), quote=True)


def script_json(value: Any) -> str:
    """Encode a value as JSON that cannot end the HTML script element around it, whatever texts it contains."""
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, numbers: Sequence[int] = ()) -> str:
    """Return an HTML table.

    ``rows``: cells that are already HTML. ``numbers``: indexes of the columns that are aligned right.
    """
    kind = ["num" if place in numbers else "" for place in range(len(head))]
    heads = "".join(f'<th scope="col"{_class(kind[place])}>{text(each)}</th>' for place, each in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{_class(kind[place])}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table><caption class="hidden">{text(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def fold(summary: str, content: str, *, kind: str = "", opened: bool = False, note: str = "") -> str:
    """Return content that the reader can unfold. ``summary`` and ``note`` are plain text, ``content`` is HTML."""
    extra = f' <span class="note">{text(note)}</span>' if note else ""
    state = " open" if opened else ""
    return f"<details{_class(kind)}{state}><summary>{text(summary)}{extra}</summary>{content}</details>"


def facts_list(pairs: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    """Return an HTML list of facts. ``pairs``: (name as plain text, value as HTML)."""
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="{kind}">{rows}</dl>'


def number(value: float) -> str:
    """Format a number with only as many digits as people compare."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    size = abs(value)
    if size and (size >= 1e7 or size < 1e-4):
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if size < 1000 else f"{value:,.0f}"


def size_text(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:,.0f} bytes" if unit == "bytes" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.3g} TiB"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
