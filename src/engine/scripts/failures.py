"""The exit code of `outrider run`, computed from the error that ended its broadcast, and advice about a missing module.

The advice is for a run that failed because the Python of its ranks lacks a module; it names options of the command
line.
"""

from __future__ import annotations

import re
import shlex
import sys

from ..api.errors import BroadcastFailed, RunStopped, SpecError, TaskKilled, TaskTimeout
from ..wire.importable import ModulePlace, place_of
from .program import ProgramFailed

OPTIONS = 2  # an error in the options, a configuration file or a script's header: nothing was started
OUTRIDER = 125  # no rank failed, but machines did not start, were lost for good, or could not be prepared
TIMEOUT = 124  # the exit code of the command timeout(1)
INTERRUPTED = 130  # the user pressed Ctrl-C
STOPPED = 143  # `outrider stop`; the same exit code as after SIGTERM
OUT_OF_MEMORY = 137  # 128 + SIGKILL: the kernel sends that signal to a process for which there is no memory


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ended the run. If a rank failed, it is that of the first failed rank."""
    match error:
        case BroadcastFailed():
            return _of_rank(error.first.error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case SystemExit(code=int(code)):  # raised by a handler of a signal
            return code
        case RunStopped():
            return STOPPED
        case SpecError():
            return OPTIONS
        case _:
            return OUTRIDER


def _of_rank(error: Exception | None) -> int:
    match error:
        case ProgramFailed():
            return error.code
        case TaskKilled(out_of_memory=True):
            return OUT_OF_MEMORY
        case TaskKilled(exit_code=int(code)):
            # an exit code of 0 is a failure too, as the rank ended its process before its program returned
            return code or 1
        case TaskKilled(signal=int(number)):
            return 128 + number
        case TaskTimeout():
            return TIMEOUT
        case _:
            return OUTRIDER


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
