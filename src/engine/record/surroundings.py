"""The kind of program that uses the pool. It decides how the pool shows events, and whether it writes a record."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..api.settings import RunOption

VARIABLE = "OUTRIDER_RUNS"
_OFF = {"0", "false", "no", "off"}
Surroundings = Literal["notebook", "application", "terminal", "pipe"]


def surroundings() -> Surroundings:
    """Return the kind of this program.

    "notebook" in a notebook; else "application" if the root logger has a handler or structlog is configured; else
    "terminal" if stderr is a terminal; else "pipe".
    """
    structlog = sys.modules.get("structlog")
    if in_notebook():
        return "notebook"
    if logging.getLogger().handlers or (structlog is not None and structlog.is_configured()):
        return "application"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "pipe"


def in_notebook() -> bool:
    """Return whether this program is a notebook's kernel. If it is, IPython has already been imported."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    try:
        return get_shell is not None and getattr(get_shell(), "kernel", None) is not None
    except Exception:  # noqa: BLE001  IPython is broken; its users get the error
        return False


def leaves_record(run: RunOption, *, tracked: bool = False) -> bool:
    """Return whether a pool writes a record.

    Args:
        run: The pool's setting. None: write a record, except in applications that have set up logging.
        tracked: Whether the pool has trackers, which need a record.

    Returns:
        False in any case if an environment variable switches records off.
    """
    if run is False or records_are_off():
        return False
    return tracked or run is not None or surroundings() != "application"


def records_are_off() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() in _OFF
