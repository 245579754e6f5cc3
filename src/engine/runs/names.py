"""The names of a program's runs, and the folder of their records."""

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
    """Return an id for a run that begins ``at`` (unix time), with the local time in it, for people."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(at))}-{name}-{os.urandom(2).hex()}"


def name_in(run: str) -> str | None:
    """Return the name in a run's id; None: ``run`` is no id."""
    match = re.fullmatch(_ID, run)
    return None if match is None else match["name"]


def usual_name() -> str:
    """Return the name of this program's runs: that of its script, or of the package that ``-m`` runs."""
    script = sys.argv[0] if sys.argv else ""
    if script in _NO_SCRIPT:
        return "python"
    path = Path(script)
    stem = path.parent.name if path.stem == "__main__" else path.stem
    if stem.endswith("kernel_launcher"):  # Jupyter's, and Colab's
        return "notebook"
    return name_of(stem)


def name_of(program: str) -> str:
    """Return the name of a program's runs: its letters and digits, and the separators that names may have."""
    from ..api.settings import NAME_LENGTH  # here: commands that read records do not need the settings of pools

    return re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-._")[:NAME_LENGTH] or "python"
