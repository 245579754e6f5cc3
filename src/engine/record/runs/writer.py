"""The thread that writes the record of one run. `put` never waits, even if the disk is slow.

Events are written after at most `FLUSH_S` seconds, in one write for each file. So a kill of the process loses the
events of at most that time. A disk error ends the record and is reported once; the pool continues.

`Pages` computes the text that each event adds to the files. `LogParts` keeps logs in parts, of which only the first and
the newest are kept, as a task may print for days. A log is one file, `rank-000.log`, until that file is large; the log
continues in `rank-000.1.log`, `rank-000.2.log` and so on. `Pages` and `LogParts` do no I/O.
`git_state` returns the state of the git repository that contains the program: its commit, and the changes since that
commit.

LOGS-1: the concatenated parts of a log are the printed text. Each part has complete lines only, and begins, except for
        the first part, with a line that names the part.
LOGS-2: the first part of a log is kept, and so are its newest `NEWEST` parts, however large other logs are.
LOGS-3: each log keeps at most 1 + `NEWEST` parts of at most `limit` bytes, except for longer lines.
"""

from __future__ import annotations

import math
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ....lazy_named_tuple import NamedTuple
from ....providers.shared.pool_lock import Owner
from ...api.printable import lines, one_line
from ...api.quantities import compact_time
from ...api.sink import Spending
from .description import error_texts
from .files import RecordFiles
from .lines import (
    EVENTS,
    LOGS,
    OURS,
    STACKS,
    SYSTEM,
    dropped_line,
    event_line,
    left_out_line,
    log_line,
    plain,
    sample_line,
)
from .logged import EventsLimit, LogWriter
from .retention import sweep_at_times
from .status import Calls, RunStatus

DIFF_BYTES = 1024 * 1024  # most bytes of the diff that are kept
PATIENCE_S = 10.0  # time limit of each git command, in seconds: a repository may be large, or its disk slow
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "diff.relative=false", "--no-pager")
_STATE = ("rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD")
_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")


@dataclass(frozen=True, slots=True)
class GitState:
    """The state of a git repository.

    ``diff``: the changes of tracked files, for `git apply`. ``cut``: True: the diff was too long, and is incomplete.
    """

    folder: str
    commit: str
    branch: str  # "": HEAD is detached
    diff: bytes
    cut: bool


def git_state(folder: Path) -> GitState | None:
    """Return the state of the git repository that contains ``folder``; None: no repository, no git, or no commit yet.

    Both git commands run at the same time, because the end of a run waits for them.
    """
    try:
        with _Command(folder, *_STATE) as state, _Command(folder, *_DIFF) as changes:
            state_output, diff = state.output(), changes.output()
        top, commit, branch = state_output.decode(errors="surrogateescape").splitlines()
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError):
        return None
    return GitState(top, commit, "" if branch == "HEAD" else branch, diff[:DIFF_BYTES], len(diff) > DIFF_BYTES)


class _Command:
    """A running git command. The end of the ``with`` block kills it.

    Raises:
        OSError: git cannot be run.
        RuntimeError: The system can start no further thread, which the time limit needs.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        # git takes no locks, so that it does not write to the repository
        env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        self._process = subprocess.Popen(  # noqa: S603  fixed arguments
            [*_GIT, "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        self._limit = threading.Timer(PATIENCE_S, self._process.kill)
        self._limit.daemon = True
        try:
            self._limit.start()
        except RuntimeError:
            self.__exit__()
            raise

    def __enter__(self) -> _Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        if self._process.returncode is None:
            self._process.kill()
        with self._process:
            pass

    def output(self) -> bytes:
        """Return the command's output. If it is longer than `DIFF_BYTES`, the end is missing.

        Raises:
            SubprocessError: The command failed, or took too long.
        """
        assert self._process.stdout is not None
        output = self._process.stdout.read(DIFF_BYTES + 1)
        if len(output) <= DIFF_BYTES and self._process.wait():
            raise subprocess.CalledProcessError(self._process.returncode, self._process.args)
        return output


PART_BYTES = 16 * 2**20  # size limit of a part in a record with few logs
ALL_BYTES = 2**30  # approximate limit for the total size of all logs of a record
LEAST_BYTES = 64 * 2**10  # size limit of a part in a record with very many logs
NEWEST = 2  # number of the newest parts of a log that are kept, besides its first part


class Placed(NamedTuple):
    """Changes of files: ``text`` to append to each file, and ``outdated`` files to remove after that."""

    text: dict[str, bytes]
    outdated: list[str]


@dataclass(slots=True)
class _Log:
    part: int = 0  # number of the part that is being written
    size_bytes: int = 0  # size of the part that is being written


class LogParts:
    """The parts of all logs of a record. A log is identified by the path of its first part."""

    def __init__(
        self, part_bytes: int = PART_BYTES, all_bytes: int = ALL_BYTES, least_bytes: int = LEAST_BYTES
    ) -> None:
        self._part_bytes, self._all_bytes, self._least_bytes = part_bytes, all_bytes, least_bytes
        self._logs: dict[str, _Log] = {}

    @property
    def limit(self) -> int:
        """The largest size of a part, in bytes: the more logs, the smaller."""
        return min(
            self._part_bytes, max(self._least_bytes, self._all_bytes // ((1 + NEWEST) * max(1, len(self._logs))))
        )

    def place(self, text: Mapping[str, bytes]) -> Placed:
        """Assign new text to the parts of logs.

        ``text``: path of a log -> complete lines that follow the earlier text.
        """
        placed = Placed({}, [])
        for path in text:
            self._logs.setdefault(path, _Log())
        for path, content in text.items():
            self._place(path, content, placed)
        return placed

    def _place(self, path: str, lines: bytes, placed: Placed) -> None:
        log, at = self._logs[path], 0
        while at < len(lines):
            mark = b"" if log.size_bytes or not log.part else _mark(log.part, lines, at)
            room = self.limit - log.size_bytes - len(mark)
            end = lines.rfind(b"\n", at, at + max(0, room)) + 1
            if not end and log.size_bytes:
                log.part, log.size_bytes = log.part + 1, 0
                if log.part > NEWEST:
                    self._remove(part_path(path, log.part - NEWEST), placed)
                continue
            end = end or lines.index(b"\n", at) + 1  # this line is longer than a whole part
            here = part_path(path, log.part)
            placed.text[here] = placed.text.get(here, b"") + mark + lines[at:end]
            log.size_bytes += len(mark) + end - at
            at = end

    def _remove(self, part: str, placed: Placed) -> None:
        placed.text.pop(part, None)
        placed.outdated.append(part)


def _mark(part: int, lines: bytes, at: int) -> bytes:
    """Return the first line of a part. It names the part, and has the time of the next line."""
    text = f"part {part + 1} of this log: of its parts the first and the newest {NEWEST} are kept"
    return b" ".join((lines[at : lines.index(b" ", at)], OURS.encode(), text.encode())) + b"\n"


def part_path(path: str, part: int) -> str:
    """Return the path of part number ``part`` of a log. ``path``: the path of the log's first part, number 0."""
    return path if part == 0 else f"{path.removesuffix('.log')}.{part}.log"


class Happened(NamedTuple):
    """An event to record. ``at``: its unix time. ``function``: the function of its call, used if the event has none."""

    event: ev.Event
    at: float
    function: str = ""


@dataclass(slots=True)
class _Broadcast:
    function: str
    size: int = 0  # number of ranks


class Pages:
    """The text that must be appended to the record's files. Keys are paths within the record."""

    def __init__(self, status: RunStatus, clean: Callable[[str], str] = str, limit: EventsLimit | None = None) -> None:
        """Create an object without text.

        ``clean``: hides secrets in a text. ``limit``: the limit for the events of the record, shared with other
        writers.
        """
        self.status = status
        self._limit = limit or EventsLimit()
        self._reported_left_out = 0
        self._clean = clean
        self._text: dict[str, list[bytes]] = {}
        self._broadcasts: dict[int, _Broadcast] = {}  # job of a broadcast that runs -> its state

    def add(self, happened: Happened) -> None:
        event, at, function = happened
        self.status.apply(event, event.at or at)
        match event:
            case ev.UnfinishedLine():
                return  # not recorded, as the complete line follows in an event `TaskOutput`
            case ev.TaskOutput():
                self._printed(event, event.at or at)
                return
            case ev.NodeSampled():
                self._append(SYSTEM, sample_line(event, at))
                return
            case ev.StackTaken():
                self._append(stack_path(event, event.at or at), self._clean(_stack_text(event)).encode())
                return
            case ev.BroadcastSubmitted():
                self._broadcasts[event.job] = _Broadcast(one_line(event.function or function))
            case ev.GenerationStarted():
                self._generation(event, event.at or at)
            case ev.BroadcastFinished():
                self._broadcasts.pop(event.job, None)
            case _:
                pass
        line = event_line(event, at, function, self._clean)
        if self._limit.takes(line, event):
            self._append(EVENTS, line)

    def dropped(self, count: int, at: float) -> None:
        line = dropped_line(count, at)
        if self._limit.takes(line):
            self._append(EVENTS, line)

    def left_out(self, at: float, *, last: bool = False) -> None:
        """Add a line to the record that events are left out, the first time and at the end of the run.

        ``last``: True: the run has ended; the line then has the final number of such events.
        """
        count = self._limit.left_out
        if count > self._reported_left_out and (last or not self._reported_left_out):
            self._reported_left_out = count
            self._append(EVENTS, left_out_line(count, at))

    def taken(self) -> dict[str, bytes]:
        """Return the text that was added since the last call of this method."""
        text, self._text = self._text, {}
        return {path: b"".join(parts) for path, parts in text.items()}

    def _printed(self, event: ev.TaskOutput, at: float) -> None:
        of_rank = event.ranks > 1 or event.job in self._broadcasts
        path = log_path(rank=event.rank) if of_rank else log_path(node=event.node)
        if event.dropped:
            self._append(path, log_line(at, OURS, f"{event.dropped:,} bytes were lost here"))
        of = "" if of_rank or not event.job else f"[{one_line(event.function) or 'task'} #{event.job}] "
        for line in lines(event.text):
            self._append(path, log_line(at, event.stream, self._clean(f"{of}{line}")))

    def _generation(self, event: ev.GenerationStarted, at: float) -> None:
        """Add a line to the log of each rank that a broadcast has started or restarted.

        Each node of the broadcast has the same number of ranks.
        """
        broadcast = self._broadcasts.setdefault(event.job, _Broadcast(""))
        # the beginning of a broadcast starts all ranks; a restart after a loss may start fewer
        broadcast.size = max(broadcast.size, len(event.ranks))
        name, each = broadcast.function or f"broadcast {event.job}", broadcast.size // max(1, len(event.nodes))
        for rank in event.ranks:
            node = event.nodes[min(rank // max(1, each), len(event.nodes) - 1)]
            mark = f"{name}: generation {event.generation} begins, rank {rank} on node {node}"
            self._append(log_path(rank=rank), log_line(at, OURS, mark))

    def _append(self, path: str, line: bytes) -> None:
        self._text.setdefault(path, []).append(line)


def log_path(*, rank: int | None = None, node: int | None = None) -> str:
    """Return the path of the log of a broadcast's rank, or of the tasks of a node that are no ranks."""
    return f"{LOGS}/rank-{rank:03}.log" if rank is not None else f"{LOGS}/node-{node:03}.log"


def stack_path(event: ev.StackTaken, at: float) -> str:
    """Return the path of the file with the stacks of a broadcast's rank, or of another task."""
    whose = f"rank-{event.rank:03}" if event.generation else f"node-{event.node:03}-job-{event.job}"
    return f"{STACKS}/{compact_time(at)}-{whose}.txt"


def _stack_text(event: ev.StackTaken) -> str:
    whose = (
        f"rank {event.rank} of {event.ranks}, generation {event.generation}" if event.generation else f"#{event.job}"
    )
    return f"{one_line(event.function)}: {whose}, node {event.node}\n{event.text}\n\n"


FLUSH_S = 0.5
HEARTBEAT_S = 60.0  # seconds between two writes of the status of an idle run, whose cost still grows
# Seconds after the run's start at which `run.json` gets the description of the run, and at which old records are
# removed. A run that ends earlier does both at its end. Neither is done at the start, as an opening pool needs the CPU.
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
    source: Path | None = None  # a folder; the state of its git repository is recorded
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
            self._closing.wait()  # until the end, hold the record's lock, which shows that the run is alive
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
