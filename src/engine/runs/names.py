"""Names of runs: what a program's runs are called, and where their records lie."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from ...providers.private import state_root

_ID = r"\d{8}-\d{6}-(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)-[0-9a-f]{4}"
_NO_SCRIPT = {"", "-", "-c", "-m"}  # sys.argv[0] of a Python that runs no file


def runs_folder() -> Path:
    return state_root() / "runs"


def new_id(name: str, at: float) -> str:
    """Return an id for a run that begins ``at`` (unix time). It has the local time, as people look for runs by it."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(at))}-{name}-{os.urandom(2).hex()}"


def name_in(run: str) -> str | None:
    """Return the name in a run's id; None: it is no such id."""
    found = re.fullmatch(_ID, run)
    return None if found is None else found["name"]


def usual_name() -> str:
    """Return the name of this program's runs: its script's, or the package's that Python runs by ``-m``."""
    script = sys.argv[0] if sys.argv else ""
    if script in _NO_SCRIPT:
        return "python"
    path = Path(script)
    stem = path.parent.name if path.stem == "__main__" else path.stem
    if stem.endswith("kernel_launcher"):  # Jupyter's, and Colab's
        return "notebook"
    return name_of(stem)


def name_of(program: str) -> str:
    """Return the name of the runs of a program, of which only letters and digits stay, and what may stand between."""
    from ..api.settings import NAME_LENGTH  # here, as commands that read records have no use for settings of pools

    return re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-._")[:NAME_LENGTH] or "python"
