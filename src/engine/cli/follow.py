"""The verbs that follow a run: `outrider logs` shows the output of its tasks, `outrider wait` waits for its end.

`outrider logs` follows the output while the run is alive. `outrider wait` exits with the exit code of the run.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from ..api.quantities import time_text
from ..record.runs.lines import OURS, LogLine, unix_time
from ..record.runs.reader import Logs, Printed, Run, at_present
from .common import DONE, INTERRUPTED, WRONG, AsJson, Flag, refused
from .run_choice import RunWord, checked_timeout, chosen_run

POLL_S = 0.25  # seconds between two reads of new lines
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def logs(
    run: RunWord,
    /,
    *,
    rank: Annotated[list[int] | None, Flag] = None,
    node: Annotated[list[int] | None, Flag] = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    lines: Annotated[int | None, Parameter(name=["--lines", "-n"])] = None,
    since: str | None = None,
    grep: str | None = None,
    times: Annotated[bool, Flag] = False,
    as_json: AsJson = False,
) -> int:
    """Show what the tasks of a run printed, oldest line first.

    Each line begins with its rank if a broadcast printed it, else with its node. A line with --- marks where a
    broadcast begins, and where it begins again after the loss of a node.

    Exits with 2 if there is no such run, or a given rank or node has no log.

    Example: `outrider logs train --rank 0 -f --since 5m --grep loss`

    Parameters
    ----------
    rank:
        Only lines of this rank of broadcasts. Can be repeated.
    node:
        Only lines that this node printed outside of broadcasts. Can be repeated.
    follow:
        Keep printing new lines until the run ends.
    lines:
        Only so many lines from the end. With --follow, new lines come after them.
    since:
        Only lines printed in the last seconds, minutes, hours or days: 30s, 5m, 2h, 1d.
    grep:
        Only lines in which this regular expression is found.
    times:
        Show when each line was printed, in UTC.
    as_json:
        Print each line as a JSON object, for programs.
    """
    matches, earliest = _pattern(grep), _earliest(since)
    if lines is not None and lines < 0:
        raise refused(f"--lines takes how many lines at the end are shown, not {lines}")
    chosen = chosen_run(run)
    reader = Logs(chosen, rank, node)
    if not follow:
        _check_origins(chosen, rank, node)

    chosen_lines = partial(_chosen, matches=matches, earliest=earliest)
    show = partial(_print, times=times, as_json=as_json)
    try:
        alive = chosen.owner == "alive"
        first = chosen_lines(reader.new_lines())
        show(first if lines is None else deque(first, lines))
        if follow and alive:
            sys.stdout.flush()
            show(chosen_lines(_followed(chosen, reader)))
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _chosen(printed: Iterable[Printed], *, matches: re.Pattern[str] | None, earliest: str) -> Iterator[Printed]:
    for line, origin in printed:
        if line.at >= earliest and (matches is None or matches.search(line.text)):
            yield Printed(line, origin)


def _print(printed: Iterable[Printed], *, times: bool, as_json: bool) -> None:
    for line, origin in printed:
        print(json.dumps(fields(line, origin)) if as_json else _shown(line, origin, times=times))


def _check_origins(run: Run, ranks: Sequence[int] | None, nodes: Sequence[int] | None) -> None:
    """Exit with 2 if a run has no log of a rank or node that the user named."""
    there = Logs(run).origins()
    for kind, numbers in (("rank", ranks), ("node", nodes)):
        known = sorted(number for each, number in there if each == kind)
        for number in numbers or ():
            if number not in known:
                has = f"it has those of {kind} {', '.join(map(str, known))}" if known else f"it has none of any {kind}"
                raise refused(f"run {run.id} has no log of {kind} {number}: {has}")


def fields(line: LogLine, origin: str) -> dict[str, Any]:
    """Return the fields of a line of a run's log, for ``--json``."""
    kind, _, number = origin.partition(" ")
    whose = {each: int(number) if kind == each else None for each in ("rank", "node")}
    return {"at": unix_time(line.at), **whose, "stream": line.stream, "text": line.text}


def _shown(line: LogLine, origin: str, *, times: bool) -> str:
    text = f"--- {line.text} ---" if line.stream == OURS else line.text
    return f"{f'{line.at} ' if times else ''}[{origin}] {text}"


def _followed(run: Run, logs: Logs) -> Iterator[Printed]:
    while True:
        # read the owner's state first, and then its lines: no line that a dying owner writes in between is missed
        alive = run.owner == "alive"
        yield from logs.new_lines()
        if not alive:
            return
        sys.stdout.flush()
        time.sleep(POLL_S)


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return None if grep is None else re.compile(grep)
    except re.error as error:
        raise refused(f"--grep takes a regular expression: {grep!r}: {error}") from None


def _earliest(since: str | None) -> str:
    """Return the time of the first line to show, formatted as in the log; empty: show all lines."""
    if since is None:
        return ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", since)
    if match is None:
        raise refused(f"--since takes a time such as 30s, 5m, 2h or 1d, not {since!r}")
    return time_text(max(0.0, time.time() - float(match[1]) * _UNITS[match[2]]))


WAIT_POLL_S = 0.1
_REASONS = {
    "alive": "",  # no message after the timeout: the exit code reports it
    "dead": "did not end: its owner died",
    "elsewhere": "is of another computer: wait there",
    "unknown": "has a lock that cannot be read, so it is not known whether it goes on",
}
TIMEOUT, DIED = 124, 125  # exit codes: TIMEOUT is that of timeout(1), and DIED that of `outrider run`
_CODES = {"alive": TIMEOUT, "dead": DIED}


def wait(run: RunWord, /, *, timeout: float | None = None, as_json: AsJson = False) -> int:
    """Wait for the end of a run, and exit with its exit code.

    Example: `outrider wait train --timeout 3600`

    Exits with 124 after the timeout, with 125 if the run's program died, and with 2 if there is no such run, or it
    belongs to another computer.

    Parameters
    ----------
    timeout:
        The most seconds to wait. Default: no limit.
    as_json:
        Print how the run ended, or that it goes on, as JSON, for programs.
    """
    began = time.monotonic()
    until = None if timeout is None else began + checked_timeout(timeout)
    chosen = chosen_run(run)
    try:
        code, state, now = _waited(chosen, until)
    except KeyboardInterrupt:
        return INTERRUPTED
    reason = "" if now.ended else _REASONS[state]
    reason = reason and f"run {chosen.id} {reason}"
    if as_json:
        shown = str(now.status.get("state", "unknown")) if state == "alive" else state
        facts = {"id": chosen.id, "state": shown, "exit_code": code, "error": now.status.get("error") or ""}
        print(json.dumps({**facts, "said": reason, "took_s": time.monotonic() - began}, indent=2))
    elif reason:
        print(f"outrider: {reason}", file=sys.stderr)
    return code


def _waited(run: Run, until: float | None) -> tuple[int, str, Run]:
    """Wait until the run has ended, or cannot be waited for any longer. ``until``: monotonic time.

    Return the exit code, "ended" or the state of the owner (the run's program), and the run as last read.
    """
    while True:
        owner, now = at_present(run)
        if now.ended:
            return int(now.status.get("exit") or 0), "ended", now
        if owner != "alive" or (until is not None and time.monotonic() >= until):
            return _CODES.get(owner, WRONG), owner, now
        time.sleep(WAIT_POLL_S)
