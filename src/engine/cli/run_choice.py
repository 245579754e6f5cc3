"""The choice of a run by the name or id that the user writes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ..api.checks import refuse
from ..runs.names import runs_folder
from ..runs.reader import Run, runs_in, runs_meant
from .failures import refused

COMPLETED = 50  # most ids that shell completion offers
SHOWN = 5  # most runs to list if several match
LONGEST_S = 1e8  # longest wait in seconds: three years, which system calls still accept


def run_words(_: object) -> dict[str, str]:
    """Return the words that name a run, for shell completion: names, and the ids of the newest runs."""
    try:
        runs = runs_in(runs_folder())[::-1]
    except OSError:
        return {}
    names = {run.name: f"the newest run of this name, {run.id}" for run in reversed(runs)}
    return {**names, **{run.id: str(run.status.get("state", "")) for run in runs[:COMPLETED]}}


HELP = "The run's id, the beginning of it, or its name: the newest of that name."
RunWord = Annotated[str, Parameter(completer=run_words, help=HELP)]
RunOrMachine = Annotated[str, Parameter(completer=run_words)]


def checked_timeout(timeout: float) -> float:
    """Check the number of seconds that a command waits, and return it.

    Raises:
        SpecError: the value is not a valid time.
    """
    if not timeout >= 0:  # written so that it also refuses nan
        refuse(f"--timeout takes seconds, not {timeout:g}.")
    return min(timeout, LONGEST_S)


def chosen_run(wanted: str) -> Run:
    """Return the run that ``wanted`` names. Exit with 2 if it names no run, or several."""
    folder = runs_folder()
    meant = runs_meant(wanted, runs_in(folder))
    if len(meant) == 1:
        return meant[0]
    if meant:
        newest = ", ".join(run.id for run in meant[: -SHOWN - 1 : -1])
        reason = f"{wanted!r} is the beginning of {len(meant)} runs, such as {newest}: write more of it"
    else:
        reason = f"there is no run {wanted!r} in {folder}: `outrider runs` shows those that there are"
    raise refused(reason)
