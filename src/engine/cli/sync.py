"""`outrider sync`: sends trackers the part of a run's record that they do not have yet."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..api.checks import refuse
from ..api.errors import OutriderError
from ..api.printable import plain
from ..config import files
from ..config.tables import tracker_of
from ..record.runs.reader import Run, read_json
from ..record.trackers.base import Tracker
from ..record.trackers.feed import Feed
from ..record.trackers.selection import Behind, behind_of
from ..record.trackers.state_file import Busy, StateFile, trackers_in
from ..record.trackers.trackers import KINDS
from .common import DONE, AsJson, refused
from .run_choice import RunWord, checked_timeout, chosen_run

LEFT = 1  # exit code: something was not sent
ALL = "all"
SHOWN_EVERY_S = 0.5


def sync(
    run: RunWord,
    /,
    *,
    to: Annotated[list[str], Parameter(negative="")],
    url: str | None = None,
    timeout: float = 60.0,
    as_json: AsJson = False,
) -> int:
    """Send a run's data to trackers such as MLflow: all that they do not have yet.

    The address and the experiment of a tracker are taken from the run's record, from a table [trackers.NAME] in
    outrider.toml, or from the environment (MLFLOW_TRACKING_URI). Tokens are never in the record. Data that was sent
    before is not sent again.

    Exits with 0 if the trackers have everything (of a run that goes on: everything so far). Exits with 1 if something
    is left, because a tracker did not answer for --timeout seconds, rejected data, or could not be used here while
    others could: run the command again to send the rest. Exits with 2 if there is no such run or tracker, or if the
    run's own program is sending to the tracker.

    Example: `outrider sync train --to mlflow`

    Parameters
    ----------
    to:
        mlflow, webhook, the name of another tracker, or all (all trackers of the run). Can be repeated.
    url:
        The tracker's address. Only with a single tracker.
    timeout:
        Give up on a tracker that has not answered for this many seconds.
    as_json:
        Print how much was sent to each tracker, and what is left, as JSON, for programs.
    """
    timeout = checked_timeout(timeout)
    chosen = chosen_run(run)
    names = _names(to, chosen, url)
    ends = [_end(chosen, name, url, timeout, alone=len(names) == 1, quiet=as_json) for name in names]
    if as_json:
        print(json.dumps([end for end, _ in ends], indent=2))
    return max(code for _, code in ends)


def _end(
    run: Run, name: str, url: str | None, timeout: float, *, alone: bool, quiet: bool
) -> tuple[dict[str, Any], int]:
    """Send a run to the tracker of this name. Return the fields for JSON, and the exit code.

    If the tracker cannot be used, for example because its package is missing, the error ends the command only if no
    other tracker was requested (``alone``).
    """
    try:
        return _sent(run, _tracker(name, run, url), timeout, quiet=quiet)
    except (SystemExit, OutriderError) as error:
        if alone:
            raise
        # a SystemExit has no text to show here: its message was printed already
        why = "" if isinstance(error, SystemExit) else f": {plain(str(error))}"
        print(f"{name}: not sent{why}", file=sys.stderr)
        left = behind_of(run.directory, name, _described(run).get(name, {}).get("ranks", "head"))
        facts = {"tracker": name, "points": 0, "lacks": left.points, "rejected": left.rejected, "complete": False}
        return {**facts, "said": f"not sent{why}"}, LEFT


def _names(to: Sequence[str], run: Run, url: str | None) -> list[str]:
    names = list(dict.fromkeys(each.strip() for some in to for each in some.split(",")))
    if ALL in names:
        names = sorted({*_described(run), *trackers_in(run.directory)})
        if not names:
            raise refused(f"{run.id} was given no trackers: name one, as in --to mlflow")
    if url is not None and len(names) > 1:
        refuse("--url is the address of one tracker, and --to names several.")
    return names


def _described(run: Run) -> dict[str, dict[str, Any]]:
    """Return the settings of the run's trackers by name, as far as the record has them. The record has no secrets."""
    spec = read_json(run.directory / "run.json").get("spec")
    trackers = spec.get("trackers") if isinstance(spec, Mapping) else None
    settings: dict[str, dict[str, Any]] = {}
    for each in trackers if isinstance(trackers, list) else ():
        if isinstance(each, Mapping) and isinstance(each.get("name"), str):
            kind = next((kind for kind, (_, name) in KINDS.items() if name == each.get("class")), None)
            settings[each["name"]] = {key: value for key, value in each.items() if key != "class"} | {"kind": kind}
    return settings


def _tracker(name: str, run: Run, url: str | None) -> Tracker:
    """Return the tracker of this name.

    Settings in outrider.toml override those in the run's record, and ``--url`` overrides both.

    Raises:
        SpecError: the tracker's kind is unknown here, or its address is missing.
    """
    file = files.find(Path.cwd())
    described, table = _described(run).get(name, {}), {} if file is None else file.trackers.get(name, {})
    options = {key: value for key, value in {**described, **table}.items() if value is not None}
    kind = options.get("kind", name if name in KINDS else None)
    if kind is None:
        if described:
            raise refused(
                f"{name} is of a class of the program's own: [trackers.{name}] of {files.OWN} says of which, "
                'as in kind = "package.module:Class"'
            )
        known = ", ".join(sorted({*KINDS, *_described(run), *(() if file is None else file.trackers)}))
        raise refused(
            f"no tracker is called {name!r} here: there are {known}; [trackers.NAME] of {files.OWN} adds others"
        )
    if url is not None:
        options["url"] = url
    elif kind == "webhook" and "url" not in options:
        raise refused(
            f"the address of a webhook is in no record: write it into [trackers.{name}] of {files.OWN}, or --url"
        )
    return tracker_of({**options, "kind": kind, "name": name})


def _sent(run: Run, tracker: Tracker, timeout: float, *, quiet: bool) -> tuple[dict[str, Any], int]:
    """Send a run to one tracker. Return the fields for JSON, and the exit code."""
    progress = _Progress(tracker.name, shown=not quiet and sys.stderr.isatty())
    feed = Feed(run.directory, tracker, on_progress=progress)
    before = StateFile(run.directory, tracker.name).load().points

    def stop(feed: Feed) -> bool:
        if feed.failing_since is not None:
            return feed.refused or time.monotonic() - feed.failing_since >= timeout
        return not feed.over and feed.idle

    try:
        with feed.file.locked():
            whole = feed.run(stop)
    except Busy:
        raise refused(
            f"another process is sending {run.id} to {tracker.name}: its own program, or another sync"
        ) from None
    finally:
        progress.end()
    left = behind_of(run.directory, tracker.name, tracker.ranks)
    fine = whole or (not feed.over and not feed.cursor.problem)
    summary = _summary(run, left, whole=whole, fine=fine)
    sent = feed.cursor.points - before
    if not quiet:
        print(
            f"{tracker.name}: {sent:,} points sent; {summary}",
            file=sys.stdout if fine and not left.rejected else sys.stderr,
        )
    facts = {
        "tracker": tracker.name,
        "points": sent,
        "lacks": left.points,
        "rejected": left.rejected,
        "complete": whole,
        "said": summary,
    }
    return facts, DONE if fine and not left.rejected else LEFT


def _summary(run: Run, left: Behind, *, whole: bool, fine: bool) -> str:
    rejected = f"it did not take {left.rejected} deliveries ({plain(left.problem)})" if left.rejected else ""
    if whole:
        return rejected or "it has all of the run"
    if fine:
        return "it has all there is so far, and the run goes on" + (f"; {rejected}" if rejected else "")
    lacks = f"it lacks {left.points:,} points" if left.points else "it lacks a part of the run"
    return f"{lacks} ({plain(left.problem)}): {left.command(run.id)}"


class _Progress:
    """A line on the terminal that shows the progress, and overwrites itself."""

    def __init__(self, name: str, *, shown: bool) -> None:
        self._name, self._shown, self._at, self._width = name, shown, 0.0, 0

    def __call__(self, feed: Feed) -> None:
        if not self._shown or time.monotonic() - self._at < SHOWN_EVERY_S:
            return
        self._at = time.monotonic()
        problem = f": {plain(feed.cursor.problem)}" if feed.cursor.problem else ""
        line = f"{self._name}: {feed.cursor.points:,} points{problem}"[:110]
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def end(self) -> None:
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
