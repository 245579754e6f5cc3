"""Choose where a pool's events are shown: in a live table, in plain lines, or in the log only."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from .log import LogSink
from .plain import PlainSink
from .sink import Sink, SinkGroup

Shown = Literal["rich", "plain", "silent"]
Console = Literal["auto", "rich", "plain", "silent"]


def make_sink(console: Console) -> Sink:
    """A sink for the log, and for what ``console`` asks for. A second live table becomes lines above the first one."""
    shown = automatic() if console == "auto" else console
    if shown == "silent":
        return LogSink()
    if shown == "rich":
        from .live import RichSink

        if table := RichSink.claim():
            return SinkGroup(LogSink(), table)
    return SinkGroup(LogSink(), PlainSink())


def automatic() -> Shown:
    """The choice for ``console="auto"``: silent in notebooks and in applications that have set up logging; a table on a
    terminal; otherwise plain lines.
    """
    if logging.getLogger().handlers or _structlog_configured() or _in_notebook():
        return "silent"
    if sys.stderr is not None and sys.stderr.isatty():
        return "rich"
    return "plain"


def _structlog_configured() -> bool:
    structlog = sys.modules.get("structlog")
    return structlog is not None and bool(structlog.is_configured())


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
