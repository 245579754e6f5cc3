"""Advice for a run that failed because the Python of its ranks lacks a module.

It names options of the command line.
"""

from __future__ import annotations

import re
import shlex
import sys

from ..api.errors import BroadcastFailed
from ..wire.importable import ModulePlace, place_of
from .program import ProgramFailed

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def missing_module_advice(error: BroadcastFailed, *, local: bool) -> str:
    """Return a sentence of advice; "": no module is missing.

    ``local``: True: the ranks run with the same Python as this program.
    """
    first = error.first.error
    match = _MISSING.search(str(first)) if isinstance(first, ProgramFailed) else None
    if match is None:
        return ""
    place = place_of(match[1])
    if place.kind == "python":
        return ""
    if local:
        python = shlex.quote(sys.executable)
        return (
            f"The ranks run on Outrider's own Python, {sys.executable}, which has no {place.name}. Next: install it "
            f"there, `{python} -m pip install {_distribution(place)}`, or start the run by the Python that has it, "
            "`/path/to/python -m outrider run ...`."
        )
    if place.kind in {"own", "editable"}:
        return (
            f"The nodes have no {place.name}, which is your own code here. Next: send it, --image includes={place.name}"
        )
    here = "is installed here, and not on the nodes" if place.kind == "installed" else "is not on the nodes"
    return (
        f"{place.name} {here}. Next: have it brought, --image pip={shlex.quote(_distribution(place))}, or name a "
        "Python of the nodes that has it, --image python=/path/to/bin/python"
    )


def _distribution(place: ModulePlace) -> str:
    return place.distribution or place.name
