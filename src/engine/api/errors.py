"""Every error that users can catch. `engine.serialization` makes them of what nodes and providers report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast

from ...lazy_dataclass import dataclass
from .printable import all_plain, plain

_T = TypeVar("_T")


class OutriderError(Exception):
    """The base of all errors. The message says whose fault it is and what to do; attributes hold the facts.

    Messages, attributes and notes have no control characters but newline and tab, as parts of them come from hosts.
    ``cleanup``: on an error that ended a pool: the failure of the clean-up that followed, which is also in the notes;
    None without one.
    """

    cleanup: CleanupError | None = None

    def __init__(self, *args: object) -> None:
        super().__init__(*map(all_plain, args))

    def __setattr__(self, name: str, value: object) -> None:
        if name == "__notes__" and type(value) is list:
            value[:] = all_plain(value)  # not a copy: `add_note` sets the list, and then appends to it
            super().__setattr__(name, value)
        else:
            super().__setattr__(name, all_plain(value))

    def add_note(self, note: str, /) -> None:
        super().add_note(plain(note))


class SpecError(OutriderError, ValueError):
    """The options, sizes or names that you gave can never work. Nothing was started or lost."""


class NotACall(SpecError, TypeError):
    """Something else was given where a pending call of a `@compute` function belongs."""


class CapacityError(OutriderError):
    """Too few machines were available. ``wanted`` and ``got`` count nodes.

    For a broadcast that had begun, ``outcomes`` has every rank's outcome.
    """

    def __init__(self, message: str, *, wanted: int = 0, got: int = 0) -> None:
        super().__init__(message)
        self.wanted, self.got = wanted, got
        self.outcomes: tuple[Outcome, ...] = ()


class StartTimeout(CapacityError, TimeoutError):
    """A machine waited in its provider's queue for as long as the pool's ``start_timeout``, and was given up.

    ``reason``: for what it waited, in the provider's words. ``limit_s``: the ``start_timeout``. ``starts_at``: when it
    was expected to start, in unix time; None: nobody knew.
    """

    def __init__(self, message: str, *, reason: str = "", limit_s: float = 0.0, starts_at: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.limit_s, self.starts_at = reason, limit_s, starts_at


class QuotaError(CapacityError):
    """The account's limit, not the cloud's stock, is too low: ask for more quota, or for less."""


class NetworkError(CapacityError):
    """The provider's service cannot be reached from this computer, so no machine was asked for."""


class BudgetExceeded(OutriderError):
    """The pool reached the limit that its user set, and was ended. ``what``: "max_cost" or "max_lifetime".

    ``limit``: in USD or seconds. ``spent``: USD. ``since``: unix time of the pool's beginning.
    """

    def __init__(
        self, message: str, *, what: str = "", limit: float = 0.0, spent: float = 0.0, since: float = 0.0
    ) -> None:
        super().__init__(message)
        self.what, self.limit, self.spent, self.since = what, limit, spent, since


class RunStopped(OutriderError):
    """The pool was ended from outside, by `outrider stop`."""


class CleanupError(OutriderError):
    """The end of the pool's machines is not confirmed, so they may still cost money.

    The pool has ended, or has not started. Results are not affected: run nothing again because of it. ``machines``: ids
    of machines that may still be running; empty: perhaps some with unknown ids. ``left``: further resources, which cost
    nothing. ``by``: unix time by which the machines end themselves, by their lease; None: unknown. The cause says what
    went wrong, such as an `AuthError`.
    """

    def __init__(
        self, message: str, *, machines: Sequence[str] = (), left: Sequence[str] = (), by: float | None = None
    ) -> None:
        super().__init__(message)
        self.machines, self.left, self.by = tuple(machines), tuple(left), by


class AuthError(OutriderError):
    """The provider does not accept the credentials: missing, wrong, expired or without the permission."""


class HostKeyError(AuthError):
    """A host presented another key than the known one, so nothing was sent to it."""


class PoolClosed(OutriderError):
    """The pool has ended, or ended before this was done: open another one."""


class PoolIdle(PoolClosed):
    """The pool did nothing for as long as its ``max_idle`` allows, and was ended. Calls that ran raise it as well.

    ``since``: unix time since when, and ``idle_s`` for how long. ``limit``: seconds. ``use``: the most that any of its
    ``gpus`` was used meanwhile, from 0 to 1; without GPUs how many processors of a node were. ``calls``: how many had
    not ended. ``spent``, ``hourly``: USD of the pool so far, and per hour at the end.
    """

    def __init__(
        self,
        message: str,
        *,
        since: float = 0.0,
        idle_s: float = 0.0,
        limit: float = 0.0,
        gpus: int = 0,
        use: float = 0.0,
        calls: int = 0,
        spent: float = 0.0,
        hourly: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.since, self.idle_s, self.limit = since, idle_s, limit
        self.gpus, self.use, self.calls = gpus, use, calls
        self.spent, self.hourly = spent, hourly


class ConnectionLost(OutriderError):
    """The connection to a node was lost; its machine may still exist."""

    def __init__(self, message: str, *, node: int | None = None) -> None:
        super().__init__(message)
        self.node = node


class BootstrapError(OutriderError):
    """The image could not be put on a machine: what failed, the end of its log, and what to do.

    ``phase``: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run", "executor" or "plugins".
    ``command`` and ``exit_status`` are None if no command failed; ``log`` has its last lines. ``machine``: the one that
    failed. ``systematic``: every machine would fail in the same way, as the image asks for something that does not
    exist.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: str = "",
        command: str | None = None,
        exit_status: int | None = None,
        log: Sequence[str] = (),
        hint: str = "",
        systematic: bool = False,
        machine: str | None = None,
        node: int | None = None,
    ) -> None:
        super().__init__(message)
        self.phase, self.command, self.exit_status, self.log = phase, command, exit_status, tuple(log)
        self.hint, self.systematic = hint, systematic
        self.machine, self.node = machine, node

    def at(self, machine: str, node: int | None = None) -> BootstrapError:
        names = ("phase", "command", "exit_status", "log", "hint", "systematic")
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        where = machine if node is None else f"node {node} ({machine})"
        error = BootstrapError(f"{where}: {self}", machine=machine, node=node, **facts)
        error.__cause__ = self.__cause__
        return error


class VersionMismatch(OutriderError):
    """Client and node run incompatible versions. ``versions``: (name, here, there)."""

    def __init__(self, message: str, *, node: int | None = None, versions: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.node, self.versions = node, tuple(versions)


class SerializationError(OutriderError):
    """Something cannot be pickled here, or unpickled there. ``path`` leads to it: ``args[0]['model'].lock``."""

    def __init__(self, message: str, *, path: str = "", task: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.path, self.task, self.kind = path, task, kind


class TransferError(OutriderError):
    """A file could not be fetched from a node, pushed to one, or written here. ``path``: where, or its name there.

    ``full``: no space is left. ``node``: by its number, as `instance_info` has it.
    """

    def __init__(self, message: str, *, path: str = "", node: int | None = None, full: bool = False) -> None:
        super().__init__(message)
        self.path, self.node, self.full = path, node, full


class CheckpointError(OutriderError):
    """A checkpoint could not be written or read. ``run``: its name; ``url``: where; ``full``: no space is left."""

    def __init__(self, message: str, *, run: str = "", url: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.run, self.url, self.full = run, url, full


class CheckpointFenced(CheckpointError):
    """A newer world has taken the run over: this one can save nothing any more."""


class _Attempted(TypedDict, total=False):
    task: str
    node: int | None
    rank: int
    attempt: int


class TaskError(OutriderError):
    """The base of errors of one task. ``node`` is None if it never was on one."""

    def __init__(
        self, message: str, *, task: str = "", node: int | None = None, rank: int = 0, attempt: int = 0
    ) -> None:
        super().__init__(message)
        self.task, self.node, self.rank, self.attempt = task, node, rank, attempt


class TaskFailed(TaskError):
    """The function raised an error that cannot be raised here itself: ``kind`` is its type, ``traceback`` a text."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        traceback: str = "",
        versions: Sequence[tuple[str, str, str]] = (),
        **attempted: Unpack[_Attempted],
    ) -> None:
        super().__init__(message, **attempted)
        self.kind, self.traceback, self.versions = kind, traceback, tuple(versions)


class SetupFailed(TaskError):
    """The ``setup`` of the function failed in the task's process; the cause is what it raised. Another call tries it
    again.
    """


class TaskTimeout(TaskError, TimeoutError):
    """The task ran longer than its ``timeout``; its process tree is gone."""

    def __init__(self, message: str, *, timeout_s: float | None = None, **attempted: Unpack[_Attempted]) -> None:
        super().__init__(message, **attempted)
        self.timeout_s = timeout_s


class TaskStalled(TaskError):
    """The task gave no sign of life for longer than its ``stall``, and had been run again as often as it may be."""


class QueueTimeout(TaskError, TimeoutError):
    """The task waited longer than its ``queue_timeout`` for a free slot; it never ran."""


class DeadlineExceeded(TaskError, TimeoutError):
    """The call was not done within its ``deadline`` after it was submitted; what ran of it was ended.

    ``where``: what it was at, in words. ``outcomes``: of a broadcast, each rank's.
    """

    def __init__(
        self,
        message: str,
        *,
        deadline_s: float | None = None,
        where: str = "",
        outcomes: Sequence[Outcome] = (),
        **attempted: Unpack[_Attempted],
    ) -> None:
        super().__init__(message, **attempted)
        self.deadline_s, self.where, self.outcomes = deadline_s, where, tuple(outcomes)


class TaskKilled(TaskError):
    """The task's process died: by ``exit_code``, by ``signal``, or (both None) perhaps ``out_of_memory``."""

    def __init__(
        self,
        message: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        out_of_memory: bool = False,
        **attempted: Unpack[_Attempted],
    ) -> None:
        super().__init__(message, **attempted)
        self.exit_code, self.signal, self.out_of_memory = exit_code, signal, out_of_memory


class TaskStopped(TaskKilled):
    """The pool itself ended the task: it was cancelled, or another rank of its broadcast had failed."""


class NodeLost(TaskError):
    """The task's node was lost, and the task was not, or could not be, retried. ``losses``: (node, cause) per attempt.

    For a broadcast with ``on_loss="fail"``, ``outcomes`` has every rank's outcome.
    """

    def __init__(
        self,
        message: str,
        *,
        losses: Sequence[tuple[int, str]] = (),
        outcomes: Sequence[Outcome] = (),
        **attempted: Unpack[_Attempted],
    ) -> None:
        super().__init__(message, **attempted)
        self.losses, self.outcomes = tuple(losses), tuple(outcomes)


class TaskQuarantined(NodeLost):
    """Every attempt of the task took its node down, so it is not tried on another node."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The outcome of one rank of a broadcast: its value or its error."""

    rank: int
    node: int | None
    error: Exception | None
    load: Callable[[], Any] | None = None  # unpickles the value when it is asked for

    def result(self) -> Any:
        """Return the rank's value.

        Raises:
            Exception: the rank's own error.
        """
        if self.error is not None:
            raise self.error
        return None if self.load is None else self.load()


@dataclass(frozen=True, slots=True, eq=False)
class ItemOutcome(Generic[_T]):
    """The outcome of one item of a map, or of one call of `Pool.as_completed`: its ``value``, or its ``error``.
    ``index``: which one it is, from 0.
    """

    index: int
    value: _T | None = None
    error: Exception | None = None

    def result(self) -> _T:
        """Return the value.

        Raises:
            Exception: the item's own error.
        """
        if self.error is not None:
            raise self.error
        return cast("_T", self.value)


class BroadcastFailed(OutriderError, ExceptionGroup[Exception]):
    """Ranks of a broadcast failed: one exception each, with its ``rank``. ``outcomes``: of all ranks, by rank.

    ``first``: the outcome of the rank that failed first, whose error the message begins with and the group too. Others
    that failed soon after it may have lost it as their peer. It is decided by when each rank failed, as its node knows,
    and by what it says: an error about a lost connection comes from another one.
    """

    outcomes: tuple[Outcome, ...]
    first: Outcome

    def __new__(
        cls,
        message: str,
        errors: Sequence[Exception],
        _outcomes: Sequence[Outcome] = (),
        _first: Outcome | None = None,
    ) -> BroadcastFailed:
        return super().__new__(cls, plain(message), errors)

    def __init__(
        self,
        message: str,
        errors: Sequence[Exception],
        outcomes: Sequence[Outcome] = (),
        first: Outcome | None = None,
    ) -> None:
        super().__init__(message, errors)
        self.outcomes = tuple(outcomes)
        leading = errors[0]
        self.first = first or Outcome(getattr(leading, "rank", 0), getattr(leading, "node", None), leading)

    def derive(self, excs: Sequence[Exception], /) -> BroadcastFailed:  # type: ignore[override]
        return BroadcastFailed(self.message, excs, self.outcomes, self.first)

    def __reduce__(self) -> tuple[Any, ...]:
        # Outcomes that were not asked for are bytes in this process, and stay here.
        return BroadcastFailed, (self.message, self.exceptions), {"__notes__": list(getattr(self, "__notes__", ()))}


class RemoteTraceback(Exception):
    """The cause of an error that was raised on a node: ``text`` is the traceback there, also in the error's note."""

    def __init__(self, summary: str, text: str = "") -> None:
        super().__init__(plain(summary))
        self.text = plain(text)
