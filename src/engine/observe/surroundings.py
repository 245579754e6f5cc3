"""The surroundings of the program: what a pool shows, and whether it leaves a record, follow from them."""

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
    """Return "application" where the root logger has a handler or structlog is configured. A notebook that logs is a
    notebook.
    """
    structlog, ipython = sys.modules.get("structlog"), sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return "notebook"
    if logging.getLogger().handlers or (structlog is not None and structlog.is_configured()):
        return "application"
    return "terminal" if sys.stderr is not None and sys.stderr.isatty() else "pipe"


def leaves_record(run: RunOption) -> bool:
    """Return whether a pool leaves a record. ``run=None`` leaves one, but for applications that have set up logging:
    they have ways of their own. The environment may say that there are none.
    """
    if run is False or os.environ.get(VARIABLE, "").strip().lower() in _OFF:
        return False
    return run is not None or surroundings() != "application"
