"""Sending of the record of one run to one tracker: read new lines, send them, and save the position in the record.

`Backoff` computes the pause after a failed delivery, and `end_of` the end of a run in the terms that trackers use; both
do no I/O.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..runs.lines import EVENTS, parsed_events, whole_lines
from ..runs.logged import ARTIFACTS, PARAMS, TEXTS
from ..runs.metrics import METRICS, metrics_in
from ..runs.reader import Owned, at_present, read_json, run_of
from .base import READY, Artifact, Away, End, Point, Refused, Rejected, Sender, Text, TrackedRun, Tracker, machines_of
from .selection import Redone, Selection
from .state_file import CHUNK_BYTES, REST, Cursor, StateFile, cut, digest

FIRST_S, MOST_S = 0.5, 60.0
REFUSED_S = 10.0  # shortest pause after an error that shows a wrong token or address
RETRY_AFTER_MOST_S = 300.0  # longest pause that a tracker's server can request with Retry-After
OVER_MOST_S = 1.0  # longest pause after the run's end, as the pool's program may be waiting for the data


class Backoff:
    """The pauses after failed deliveries to one tracker. Each is twice as long as the previous, until one delivery
    succeeds.

    Jitter varies them.
    """

    def __init__(self) -> None:
        self.tries = 0

    def taken(self) -> None:
        self.tries = 0

    def failed(
        self, chance: float, *, retry_after_s: float | None = None, refused: bool = False, over: bool = False
    ) -> float:
        """Return how many seconds to wait after a failed delivery.

        Args:
            chance: A random number from 0 to 1, for the jitter.
            retry_after_s: The pause that the tracker's server requests; None: it requests none.
            refused: True: the token or the address is wrong.
            over: True: the run has ended.
        """
        usual = min(MOST_S, FIRST_S * 2.0 ** min(self.tries, 10)) * (0.5 + chance / 2)
        self.tries += 1
        if retry_after_s is not None:
            return min(max(0.0, retry_after_s), RETRY_AFTER_MOST_S)
        if over:
            return min(usual, OVER_MOST_S)
        return max(usual, REFUSED_S) if refused else usual


_BY_SIGNAL = frozenset({128 + 1, 128 + 2, 128 + 15})  # SIGHUP, SIGINT, SIGTERM: exit codes of runs that a signal ended
_STOPPED = frozenset({"KeyboardInterrupt", "RunStopped", "CancelledError"})


def end_of(status: Mapping[str, Any], owner: Owned) -> End | None:
    """Return the end of a run, given the content of its `status.json`; None: the run continues, or its end is not
    known.

    If the run's program was killed, the time of the end is the last time at which the program wrote that file.

    Args:
        status: The content of `status.json`.
        owner: Whether the run's program is alive.
    """
    if status.get("state") == "ended":
        code, error = status.get("exit"), str(status.get("error", ""))
        at, spent = float(status.get("ended") or status.get("written") or 0.0), status.get("spent_usd")
        if code == 0:
            return End("finished", at, 0, "", spent)
        stopped = error in _STOPPED or code in _BY_SIGNAL
        return End("killed" if stopped else "failed", at, code, error, spent)
    if owner == "dead":
        return End("killed", float(status.get("written") or status.get("changed") or 0.0), None, "its owner died")
    return None


POLL_S = 0.2  # pause between two checks of a record that has no new data
EVERY_S = 1.0  # time between two deliveries of points while the run continues; points of this time are sent together
# The tracker gets the run's description (git, machines) when it creates the run. Wait at most this long until the
# description is complete.
DESCRIBED_S = 1.5
POINTS = 1000  # send points once there are this many; a delivery may contain somewhat more
PIECES = 64  # most pieces of `CHUNK_BYTES` bytes that are read for one delivery of points
LINE_BYTES = 4 * 1024 * 1024  # longest line that is read from files other than the metrics


class Feed:
    """The transfer of one run to one tracker.

    ``cursor``: the progress. ``over``: True: the run has ended. ``refused``: True: the tracker accepts no data, because
    the token or the address is wrong.
    """

    def __init__(
        self,
        directory: Path,
        tracker: Tracker,
        *,
        on_progress: Callable[[Feed], None] = lambda _: None,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the feed. ``on_progress``: called after each delivery, accepted or not."""
        self.directory, self.tracker = directory, tracker
        self.file = StateFile(directory, tracker.name)
        self.cursor = Cursor()
        self.over = self.refused = False
        self.failing_since: float | None = None
        self._on_progress, self._wait, self._clock = on_progress, wait, clock
        self._end: End | None = None
        self._sender: Sender | None = None
        self._began: float | None = None
        self._moved = False  # whether the last step sent data
        self._backoff = Backoff()
        self._selection, self._redone = Selection(tracker.ranks), Redone()
        self._ahead = 0  # number of bytes of the metrics file that were searched for repeated steps
        # (points that are being sent, the number of their bytes in the file)
        self._pending: tuple[list[Point], int] | None = None
        # points that are sent only after the run's end, such as means without the values of some ranks; None: not yet
        self._rest: list[Point] | None = None
        self._points_due = 0.0
        self._params_sign: tuple[int, ...] = ()

    def run(self, stop: Callable[[Feed], bool] = lambda _: False) -> bool:
        """Send until the run has ended and the tracker has all its data, or until ``stop`` returns True.

        Return whether the tracker has all data. ``stop`` is called after each step, whether the step sent data or not.
        The caller must hold the lock of the state file.
        """
        self._load()
        try:
            while not self.complete:
                moved = self._step()
                if not self.complete and stop(self):
                    return False
                if not moved:
                    self._wait(POLL_S)
        finally:
            if self._sender is not None:
                self._sender.close()
        return True

    @property
    def complete(self) -> bool:
        """Return whether the run has ended and the tracker has all its data."""
        return self.cursor.ended

    @property
    def idle(self) -> bool:
        """Return whether the last step succeeded and found no data to send."""
        return self.failing_since is None and self._sender is not None and not self._moved

    def _load(self) -> None:
        self.cursor = self.file.load()
        self._selection = Selection(self.tracker.ranks, self.cursor.selection)

    def _step(self) -> bool:
        """Check the record once; return whether data was sent."""
        self._moved = False
        try:
            self._look()
            self._moved = self._advance()
        except Exception as error:  # noqa: BLE001  a user's own tracker may raise anything
            self._failed(error)
            return True
        if self._moved or self.failing_since is not None:
            self._taken()
        return self._moved

    def _look(self) -> None:
        """Read whether the run has ended, before its files are read: if it has ended, the files are complete."""
        owner, run = at_present(run_of(self.directory))
        self._end = end_of(run.status, owner)
        self.over = self._end is not None

    def _taken(self) -> None:
        self._backoff.taken()
        self.failing_since, self.refused = None, False
        if self.cursor.problem:
            self.cursor.problem = ""
            self._save()
        self._on_progress(self)

    def _failed(self, error: Exception) -> None:
        away = error if isinstance(error, Away) else Away(f"{type(error).__name__}: {error}")
        if self.failing_since is None:
            self.failing_since = self._clock()
        problem = str(away)[:500]
        if self.cursor.problem != problem:
            self.cursor.problem = problem
            if away is not error:  # an unexpected error: its traceback shows the tracker's author where it was raised
                traceback.print_exception(error)
            try:
                self._save()
            except OSError:
                pass  # the disk is full or broken, so the problem cannot be saved either
        self._on_progress(self)
        self.refused = isinstance(away, Refused)
        pause = self._backoff.failed(
            random.random(),  # noqa: S311  only for jitter
            retry_after_s=away.retry_after_s,
            refused=self.refused,
            over=self.over,
        )
        was_over, until = self.over, self._clock() + pause
        while (left := until - self._clock()) > 0:
            self._wait(min(left, POLL_S))
            self._look()
            if self.over and not was_over:
                # the run has just ended: send the remaining data without further pause, as the pool's program may wait
                # for it
                return

    def _save(self) -> None:
        self.file.save(self.cursor)

    # --- sending one step, in the order of the calls below
    # ----------------------------------------------------------------

    def _advance(self) -> bool:
        sender = self._sender or self._opened()
        if sender is None:
            return False
        moved = [
            self._send_params(sender),
            self._send_lines(sender, "artifact", ARTIFACTS, self._artifact),
            self._send_lines(sender, "text", TEXTS, _text),
            self._send_events(sender),
            self._send_points(sender),
        ]
        if any(moved) or self._end is None:
            return any(moved)
        self._send_rest(sender)
        end = self._end
        self._deliver("the end of the run", self._key("ended"), lambda: sender.ended(end))
        self.cursor.ended = True
        self._save()
        return True

    def _opened(self) -> Sender | None:
        """Open a sender and create the run at the tracker; None: the run's description is not complete yet."""
        about = read_json(self.directory / "run.json")
        now = self._clock()
        self._began = now if self._began is None else self._began
        events = self._read(EVENTS, 0, LINE_BYTES)
        machines = machines_of(parsed_events(events))
        is_described = "spec" in about and "git" in about and bool(machines or not events)
        if not (self.over or is_described or now - self._began > DESCRIBED_S):
            return None
        run = TrackedRun(
            id=self.directory.name,
            name=str(about.get("name", "")),
            directory=self.directory,
            began=float(about.get("began", 0.0)),
            about=about,
            ids=self.cursor.ids,
            keep=self._keep,
            machines=machines,
        )
        self._sender = sender = self.tracker.open(run)
        try:
            self._deliver("the beginning of the run", self._key("begun"), sender.begun)
        except BaseException:
            self._sender = None
            sender.close()
            raise
        if not self.cursor.begun:
            self.cursor.begun = True
            self._save()
        return sender

    def _keep(self, name: str, value: str) -> None:
        self.cursor.ids[name] = value
        self._save()

    def _key(self, *parts: object) -> str:
        return ":".join((self.directory.name, *map(str, parts)))

    def _deliver(self, what: str, key: str, send: Callable[[], None]) -> bool:
        """Make one delivery; return whether the tracker accepted it. A rejected delivery is not sent again."""
        assert self._sender is not None
        self._sender.key = key
        try:
            send()
        except Rejected as rejected:
            self.cursor.reject(f"{what}: {rejected}"[:500])
            return False
        return True

    def _send_params(self, sender: Sender) -> bool:
        path = self.directory / PARAMS
        if not sender.takes("params") or (sign := _sign(path)) == self._params_sign:
            return False
        new = self.cursor.new_params(read_json(path))
        if new:
            self._deliver("params", self._key("params", digest(new)), partial(sender.params, new))
            self.cursor.params_done(new)
            self._save()
        self._params_sign = sign
        return bool(new)

    def _send_lines(
        self, sender: Sender, what: str, file: str, parse: Callable[[Path, Mapping[str, Any]], Any]
    ) -> bool:
        """Send each new line of a file as a separate delivery. Return whether a line was sent."""
        if not sender.takes(what):
            return False
        sent = False
        send = getattr(sender, what)
        for line, facts in self._new_lines(file):
            position = self.cursor.position(file)
            try:
                value = parse(self.directory, facts)
            except (KeyError, TypeError, ValueError):  # the line is damaged, because the disk was full
                value = None
            if value is not None:
                self._deliver(f"the {what} {value.name!r}", self._key(what, position), partial(send, value))
                sent = True
            self.cursor.done(file, len(line))
            self._save()
        return sent

    def _send_events(self, sender: Sender) -> bool:
        if not sender.events:
            return False
        sent = False
        for line, facts in self._new_lines(EVENTS):
            position, name = self.cursor.position(EVENTS), facts.get("event")
            if name in sender.events:
                if name == READY:
                    before = parsed_events(self._read(EVENTS, 0, position))
                    facts = {**facts, "machines": machines_of(before)}  # noqa: PLW2901
                self._deliver(f"the event {name}", self._key("event", position), partial(sender.event, facts))
                self.cursor.done(EVENTS, len(line))
                self._save()
                sent = True
            else:
                self.cursor.done(EVENTS, len(line))  # the new position is saved later, with the next delivery
        return sent

    def _new_lines(self, file: str) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
        """Yield each new line of a file with its parsed content ({}: the line cannot be parsed).

        The caller must advance the position.
        """
        content = self._read(file, self.cursor.position(file), LINE_BYTES)
        for line in whole_lines(content):
            yield line + b"\n", next(parsed_events(line + b"\n"), {})
        if b"\n" not in content and len(content) == LINE_BYTES:
            self.cursor.done(file, len(content))  # skip a line that is longer than the limit

    # --- points -------------------------------------------------------------------------------------------------------

    def _send_points(self, sender: Sender) -> bool:
        if not sender.takes("points"):
            return False
        if self._pending is None:
            if self._clock() < self._points_due and not self.over:
                return False
            self._pending = self._gathered()
        points, size = self._pending
        if not size:
            self._pending = None
            return False
        if points:
            self._save()  # save first where these points end: a restarted process then sends the same points again
            key = self._key("metrics", self.cursor.position(METRICS), self.cursor.until)
            if self._deliver(f"{len(points)} points", key, partial(sender.points, points)):
                self.cursor.points += len(points)
        self.cursor.done(METRICS, size)
        self.cursor.selection = self._selection.state()
        self._pending = None
        if points:
            self._save()
        self._points_due = 0.0 if len(points) >= POINTS else self._clock() + EVERY_S
        return bool(points)

    def _gathered(self) -> tuple[list[Point], int]:
        """Return the points for the next delivery, and how many bytes of the metrics file they take."""
        self._look_ahead()
        cursor = self.cursor
        if size := cursor.marked():
            return self._selected(self._read(METRICS, cursor.position(METRICS), size)), size
        points: list[Point] = []
        at = cursor.position(METRICS)
        for _ in range(PIECES):
            content = self._read(METRICS, at, CHUNK_BYTES)
            if not (size := cut(content)):
                break
            points += self._selected(content[:size])
            at += size
            if len(points) >= POINTS:
                break
        size = at - cursor.position(METRICS)
        cursor.mark(size)
        return points, size

    def _selected(self, content: bytes) -> list[Point]:
        return self._selection.add(metrics_in(whole_lines(content)), self._redone)

    def _look_ahead(self) -> None:
        """Search the metrics file, up to its present end, for steps that a restarted broadcast has repeated."""
        while lines := whole_lines(self._read(METRICS, self._ahead, LINE_BYTES)):
            self._redone.look(lines)
            self._ahead += sum(map(len, lines)) + len(lines)

    def _send_rest(self, sender: Sender) -> None:
        """Send the points that were held back until the run's end, such as means without the values of some ranks.

        If this process is killed meanwhile, the next process finds these points in the saved state.
        """
        if self._rest is None:
            self._rest = self._selection.rest() if sender.takes("points") else []
        while some := self._rest[:POINTS]:
            key = self._key("metrics", self.cursor.position(METRICS), REST, len(self._rest))
            if self._deliver(f"{len(some)} points", key, partial(sender.points, some)):
                self.cursor.points += len(some)
            del self._rest[:POINTS]

    # --- files --------------------------------------------------------------------------------------------------------

    def _read(self, file: str, at: int, most: int) -> bytes:
        try:
            with (self.directory / file).open("rb", buffering=0) as stream:
                stream.seek(at)
                return stream.read(most)
        except FileNotFoundError:
            return b""

    @staticmethod
    def _artifact(directory: Path, facts: Mapping[str, Any]) -> Artifact:
        path = directory / str(facts["path"])
        return Artifact(
            str(facts["name"]),
            path,
            int(facts["size_bytes"]),
            str(facts["sha256"]),
            float(facts["at"]),
            facts.get("rank"),
        )


def _text(_: Path, facts: Mapping[str, Any]) -> Text:
    return Text(str(facts["name"]), str(facts["text"]), facts.get("step"), float(facts["at"]), facts.get("rank"))


def _sign(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
