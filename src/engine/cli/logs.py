"""`outrider logs`: show what the tasks of a run have printed, or print just now."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from ..runs.lines import OURS, time_text
from ..runs.reader import Logs, Printed, Run
from .failures import INTERRUPTED, WRONG
from .pool_search import NOTHING, Flag
from .run_choice import RunWord, chosen_run

POLL_S = 0.25  # between looks at what has been added
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def logs(
    run: RunWord,
    /,
    *,
    rank: Annotated[list[int] | None, Flag] = None,
    node: Annotated[list[int] | None, Flag] = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    since: str | None = None,
    grep: str | None = None,
    times: Annotated[bool, Flag] = False,
) -> int:
    """Show what the tasks of a run have printed, in the order of time.

    A broadcast's lines are by rank, with a mark where a generation begins; those of other calls are by node. Exits with
    2 where there is no such run.

    Example: `outrider logs train --rank 0 -f --since 5m --grep loss`

    Parameters
    ----------
    run:
        The run's id, the beginning of it, or its name: the newest of that name.
    rank:
        Only this rank of broadcasts; may be given several times.
    node:
        Only what this node ran outside of broadcasts; may be given several times.
    follow:
        Go on until the run has ended.
    since:
        Only lines of the last so many seconds, minutes, hours or days: 30s, 5m, 2h, 1d.
    grep:
        Only lines in which this regular expression is found.
    times:
        Show when each line was printed, in UTC.
    """
    matches, earliest = _pattern(grep), _earliest(since)
    found = chosen_run(run)
    try:
        for line, origin in (
            _followed(found, Logs(found, rank, node)) if follow else Logs(found, rank, node).new_lines()
        ):
            if line.at >= earliest and (matches is None or matches.search(line.text)):
                when = f"{line.at} " if times else ""
                said = f"--- {line.text} ---" if line.stream == OURS else line.text
                print(f"{when}[{origin}] {said}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return NOTHING


def _followed(run: Run, logs: Logs) -> Iterator[Printed]:
    while True:
        alive = run.owner == "alive"  # asked first: what was written before its end is read after it
        yield from logs.new_lines()
        if not alive:
            return
        sys.stdout.flush()
        time.sleep(POLL_S)


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return None if grep is None else re.compile(grep)
    except re.error as error:
        raise _refused(f"--grep takes a regular expression: {grep!r}: {error}") from None


def _earliest(since: str | None) -> str:
    """Return the time from which on lines are shown, as it stands in logs; empty: all."""
    if since is None:
        return ""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", since)
    if found is None:
        raise _refused(f"--since takes a time such as 30s, 5m, 2h or 1d, not {since!r}")
    return time_text(max(0.0, time.time() - float(found[1]) * _UNITS[found[2]]))


def _refused(said: str) -> SystemExit:
    print(f"outrider: {said}", file=sys.stderr)
    return SystemExit(WRONG)
