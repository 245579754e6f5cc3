"""The names of a program's runs, and the folder with the records of all runs."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from ....providers.shared.paths import state_root

_ID = r"\d{8}-\d{6}-(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)-[0-9a-f]{4}"
_NO_SCRIPT = {"", "-", "-c", "-m"}  # values of sys.argv[0] if Python does not run a script file


def runs_folder() -> Path:
    return state_root() / "runs"


def new_id(name: str, at: float) -> str:
    """Return a new id for a run that begins at the unix time ``at``.

    The id contains the local time, so that people can read it.
    """
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(at))}-{name}-{os.urandom(2).hex()}"


def name_in(run: str) -> str | None:
    """Return the name in a run's id; None: ``run`` is not an id."""
    match = re.fullmatch(_ID, run)
    return None if match is None else match["name"]


def usual_name() -> str:
    """Return the default name of this program's runs: the name of its script, or of the package that ``-m`` runs."""
    script = sys.argv[0] if sys.argv else ""
    if script in _NO_SCRIPT:
        return "python"
    path = Path(script)
    stem = path.parent.name if path.stem == "__main__" else path.stem
    if stem.endswith("kernel_launcher"):  # Jupyter or Colab runs this script for a notebook
        return "notebook"
    return name_of(stem)


def name_of(program: str) -> str:
    """Convert ``program`` to a valid name for its runs: only letters, digits, and the characters ``._-``."""
    # imported only here, as commands that read records do not need the settings of pools
    from ...api.settings import NAME_LENGTH

    return re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-._")[:NAME_LENGTH] or "python"
