"""The thread that writes the record of one run. `put` never waits, even if the disk is slow.

Events are written after at most `FLUSH_S` seconds, in one write for each file. So a kill of the process loses the
events of at most that time. A disk error ends the record and is reported once; the pool continues.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...actors import events as ev
from ...lazy_dataclass import dataclass
from ...providers.shared.pool_lock import Owner
from ..api.sink import Spending
from .error_texts import error_texts
from .events_limit import EventsLimit
from .files import RecordFiles
from .git import GitState, git_state
from .lines import LOGS, plain
from .log_parts import LogParts
from .log_writer import LogWriter
from .pages import Happened, Pages
from .retention import sweep_at_times
from .status import Calls, RunStatus

FLUSH_S = 0.5
HEARTBEAT_S = 60.0  # seconds between two writes of the status of an idle run, whose cost still grows
# Seconds from the start until the run is described, and until old records are removed; at the latest at the run's end.
# Not at once, as an opening pool needs the CPU.
DESCRIBE_S, SWEEP_S = 0.5, 3.0
GIT_S = 0.5  # longest wait for the git commands at the end of a run, in seconds
CLOSE_S = 2.0  # longest wait for the disk at the end of a pool, in seconds
BACKLOG = 100_000  # most events that wait for the disk; more events are only counted
BACKLOG_CHARS = 16 * 1024 * 1024  # most characters of tasks' output that wait for the disk; more output is only counted
RUN, STATUS, RESULT, DIFF = "run.json", "status.json", "result.json", "git.diff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a record.

    ``describe``: returns further fields of `run.json`. It is called in the writer's thread.
    """

    name: str
    folder: Path  # the folder of all records
    describe: Callable[[], Mapping[str, Any]] = dict
    clean: Callable[[str], str] = str  # hides secrets in a text
    source: Path | None = None  # a folder in the git repository that is described
    files: RecordFiles | None = None  # a record that already exists; None: create one


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run.

    ``calls``: the numbers of calls of each function. ``code``: the program's exit code; None: the code with which
    Python ends for this error.
    """

    error: BaseException | None = None
    calls: Mapping[str, Any] | None = None
    code: int | None = None

    @property
    def exit_code(self) -> int:
        if self.code is not None:
            return self.code
        match self.error:
            case None:
                return 0
            case KeyboardInterrupt():
                return 130
            case SystemExit(code=None):
                return 0
            case SystemExit(code=int(code)):
                return code & 0xFF  # the system keeps only the lowest 8 bits of an exit code
            case _:
                return _own_code(self.error)


def _own_code(error: BaseException) -> int:
    """Return the exit code that a framework for commands gives to its own error, as in ``typer.Exit(3)``; else 1."""
    of_framework = any(each.__module__.partition(".")[0] in ("click", "typer") for each in type(error).__mro__)
    code = getattr(error, "exit_code", None) if of_framework else None
    return code & 0xFF if isinstance(code, int) else 1


class RunWriter:
    """The writer of a record.

    ``directory``: the folder of the record, once it is created. ``failure``: why writing stopped; "": it has not
    stopped.
    """

    def __init__(
        self,
        plan: Plan,
        failed: Callable[[], object] = lambda: None,
        opened: Callable[[], object] = lambda: None,
        *,
        state: str = "starting",
    ) -> None:
        """Prepare the writer. `start` starts its thread.

        Args:
            plan: The settings of the record.
            failed: Called once when ``failure`` is set, in the writer's thread if that thread runs.
            opened: Called once when the record exists and names its owner, in the writer's thread.
            state: The first state of the run.
        """
        self._plan, self._failed, self._opened = plan, failed, opened
        self.directory: Path | None = None
        self.failure = ""
        self.spending = Spending()  # the latest cost that the pool reported
        self.calls: Callable[[], Calls] = Calls  # returns the present numbers of calls; any thread may call it
        self._began = time.time()
        limit = EventsLimit()
        self._pages = Pages(RunStatus("", plan.name, self._began, state=state, changed=self._began), plan.clean, limit)
        self._parts = LogParts()
        self._items: deque[Happened] = deque()
        self.log = LogWriter(plan.clean, self._wake_up, limit)  # any thread may add log records to it
        # characters of output added by `put`, and written by the thread: only one thread changes each counter
        self._chars_put = self._chars_taken = 0
        self._dropped = self._dropped_reported = 0
        self._about: dict[str, Any] = {}  # the content of run.json
        self._git: GitState | None = None
        self._git_look = threading.Thread(target=self._look_at_git, name="outrider-record-git", daemon=True)
        self._end = RunEnd()
        self._described = False
        self._ready = threading.Event()  # set when the record is open or has failed
        self._wake, self._leaving, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="outrider-record", daemon=True)

    def start(self) -> None:
        """Start the writer's thread.

        If the system cannot start a thread, there is no record, and ``failure`` has the reason.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            self._fail(error)

    def ready(self, within_s: float = CLOSE_S) -> bool:
        """Wait until the record is created or has failed, for at most ``within_s`` seconds.

        Return whether it exists.
        """
        return self._ready.wait(within_s) and not self.failure

    def put(self, event: ev.Event, at: float, function: str = "") -> None:
        """Record an event, without waiting. Only one thread may call this."""
        if self.failure:
            return
        chars = len(event.text) if isinstance(event, ev.TaskOutput) else 0
        if len(self._items) >= BACKLOG or (chars and self._chars_put - self._chars_taken > BACKLOG_CHARS):
            self._dropped += 1
            return
        self._chars_put += chars
        self._items.append(Happened(event, at, function))
        if isinstance(event, ev.PoolClosing):  # now the nodes end; use this time to write the waiting events
            self._leaving.set()
        self._wake_up()

    def _wake_up(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def close(self, end: RunEnd, within_s: float = CLOSE_S) -> None:
        """Write the remaining events and the end of the run, then end the thread. Idempotent.

        Wait for at most ``within_s`` seconds, but longer while log records are still being written.
        """
        if not self._closing.is_set():
            self._end = end
            self._closing.set()
            self._leaving.set()
            self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        left = math.inf
        while self._thread.is_alive() and 0 < self.log.waiting_bytes < left:  # some log records are not written yet
            left = self.log.waiting_bytes  # wait again if the disk makes progress
            self._thread.join(within_s)

    # --- in the writer's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            files = self._plan.files or RecordFiles.make(self._plan.folder, self._plan.name, self._began)
        except Exception as error:  # noqa: BLE001  no error of the record may end the pool
            self._fail(error)
            return
        self.directory, self._pages.status.id = files.directory, files.directory.name
        self.log.opened(files)
        self._ready.set()
        try:
            self._record(files)
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            self._closing.wait()  # hold the record's lock until then: it shows that the run is alive
            with suppress(Exception):
                self._write_end(files)
        finally:
            files.close()
            self._end = RunEnd()  # drop the error: its traceback's frames would keep the program's values alive

    def _fail(self, error: Exception) -> None:
        self.failure = str(error) or type(error).__name__
        self._ready.set()
        self._items.clear()
        self._failed()

    def _record(self, files: RecordFiles) -> None:
        self._write_status(files)
        owner = asdict(Owner.this(files.directory))
        self._about = {"id": files.directory.name, "name": self._plan.name, "began": self._began, "owner": owner}
        files.replace(RUN, self._about)
        self._opened()
        began, written_at, swept = time.monotonic(), -FLUSH_S, False
        while not self._closing.is_set():
            due = math.inf if swept else began + (SWEEP_S if self._described else DESCRIBE_S)
            self._wake.wait(max(0.0, min(due - time.monotonic(), HEARTBEAT_S)))
            urgent = self._closing if self._described else self._leaving
            urgent.wait(max(0.0, written_at + FLUSH_S - time.monotonic()))
            written_at = time.monotonic()
            if not self._described and (self._leaving.is_set() or written_at >= due):
                self._describe(files)
            self._write(files)
            if not self._closing.is_set():  # when closing, the final status is written instead
                self._write_status(files)
            if self._described and not swept and written_at >= began + SWEEP_S:
                swept = self._sweep(files)
        if not self._described:
            self._describe(files)
        if self._git_look.ident is not None:
            self._git_look.join(GIT_S)
        self._write(files)
        self.log.end(files)
        self._pages.left_out(time.time(), last=True)
        self._append(files, self._pages.taken())
        self._write_end(files)
        if not swept:
            self._sweep(files)

    def _describe(self, files: RecordFiles) -> None:
        self._described = True
        with suppress(RuntimeError):  # the system can start no further thread: the record then lacks the state of git
            self._git_look.start()
        try:
            self._about |= plain(self._plan.describe(), self._plan.clean)
        except Exception as error:  # noqa: BLE001  for example, from a user's own plugin
            self._about["undescribed"] = repr(error)
        files.replace(RUN, self._about)

    def _sweep(self, files: RecordFiles) -> bool:
        with suppress(Exception):  # errors in old records do not matter for this record
            sweep_at_times(files.directory.parent)
        return True

    def _look_at_git(self) -> None:
        if self._plan.source is not None:
            self._git = git_state(self._plan.source)
            self._wake.set()

    def _write(self, files: RecordFiles) -> None:
        """Write all waiting events to the record."""
        self._wake.clear()
        for _ in range(len(self._items)):
            happened = self._items.popleft()
            if isinstance(happened.event, ev.TaskOutput):
                self._chars_taken += len(happened.event.text)
            self._pages.add(happened)
        if self._dropped > self._dropped_reported:
            dropped = self._dropped
            self._pages.dropped(dropped - self._dropped_reported, time.time())
            self._dropped_reported = dropped
        self._pages.left_out(time.time())
        self._append(files, self._pages.taken())
        self.log.write(files)
        if self._git is not None and "git" not in self._about:
            self._write_git(files, self._git)

    def _append(self, files: RecordFiles, text: Mapping[str, bytes]) -> None:
        """Append text to the record's files. Text for a log goes to that log's newest part."""
        logs = {path: lines for path, lines in text.items() if path.startswith(LOGS)}
        placed = self._parts.place(logs)
        files.append({**placed.text, **{path: lines for path, lines in text.items() if path not in logs}})
        files.remove(placed.outdated)

    def _write_status(self, files: RecordFiles) -> None:
        now, spending = time.time(), self.spending
        files.replace(STATUS, self._pages.status.facts(now, spending.until(now), spending.hourly, self.calls()))

    def _write_git(self, files: RecordFiles, git: GitState) -> None:
        facts: dict[str, Any] = {
            "folder": git.folder,
            "commit": git.commit,
            "branch": git.branch,
            "changed": bool(git.diff),
        }
        if git.diff:
            text = self._plan.clean(git.diff.decode(errors="surrogateescape"))
            files.replace(DIFF, text.encode(errors="surrogateescape"))
            facts |= {"diff": DIFF, "diff_is_whole": not git.cut}
        self._about["git"] = facts
        files.replace(RUN, self._about)

    def _write_end(self, files: RecordFiles) -> None:
        now, end, status = time.time(), self._end, self._pages.status
        error = None if end.error is None else error_texts(end.error, self._plan.clean)
        status.end(now, end.exit_code, "" if error is None else error["type"])
        result = {"exit": end.exit_code, "error": error, "took_s": now - self._began, "calls": end.calls or {}}
        files.replace(RESULT, {**result, "spent_usd": self.spending.until(now)})
        self._write_status(files)
