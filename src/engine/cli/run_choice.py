"""The choice of a run by the name or id that the user wrote."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ..api.checks import refuse
from ..record.runs.names import runs_folder
from ..record.runs.reader import Run, runs_in, runs_meant
from .common import refused

COMPLETED = 50  # shell completion offers the ids of at most so many runs
SHOWN = 5  # a message lists at most so many runs if the user's word means several
LONGEST_S = 1e8  # longest timeout in seconds, about three years: system calls refuse longer ones


def run_words(_: object) -> dict[str, str]:
    """Return the words that name a run, for shell completion: names, and the ids of the newest runs."""
    try:
        runs = runs_in(runs_folder())[::-1]
    except OSError:
        return {}
    names = {run.name: f"the newest run of this name, {run.id}" for run in reversed(runs)}
    return {**names, **{run.id: str(run.status.get("state", "")) for run in runs[:COMPLETED]}}


HELP = "The run: its id, the beginning of its id, or its name (the newest run of that name)."
RunWord = Annotated[str, Parameter(completer=run_words, help=HELP)]
RunOrMachine = Annotated[str, Parameter(completer=run_words)]


def checked_timeout(timeout: float) -> float:
    """Check the seconds of ``--timeout``, and return them, at most `LONGEST_S`.

    Raises:
        SpecError: the value is not valid.
    """
    if not timeout >= 0:  # written so that it also refuses nan
        refuse(f"--timeout takes seconds, not {timeout:g}.")
    return min(timeout, LONGEST_S)


def chosen_run(wanted: str) -> Run:
    """Return the run that ``wanted`` (the user's word) names. Exit with 2 if it names no run, or several."""
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
