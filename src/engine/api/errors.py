"""Every error that users can catch. `engine.serialization` makes them of what nodes and providers report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast

from ...lazy_dataclass import dataclass
from .printable import all_plain, plain

_T = TypeVar("_T")


class OutriderError(Exception):
    """The base of all errors. The message says what happened, why, and what to do; attributes hold the facts.

    Messages, attributes and notes have no control characters except newline and tab, because parts of them come from
    hosts.

    Attributes:
        cleanup: On an error that ended a pool: the failure of the clean-up that followed, which is also in the notes.
            None if it succeeded.
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
        """Add a note, without control characters."""
        super().add_note(plain(note))


class SpecError(OutriderError, ValueError):
    """An option, size or name can never work. Nothing was started or lost."""


class NotACall(SpecError, TypeError):
    """The argument is not a pending call of a `@compute` function."""


class CapacityError(OutriderError):
    """Too few machines were available.

    Attributes:
        wanted: The number of nodes that were needed.
        got: The number of nodes that there were.
        outcomes: For a broadcast that had begun: the outcome of every rank.
    """

    def __init__(self, message: str, *, wanted: int = 0, got: int = 0) -> None:
        super().__init__(message)
        self.wanted, self.got = wanted, got
        self.outcomes: tuple[Outcome, ...] = ()


class StartTimeout(CapacityError, TimeoutError):
    """A machine waited in its provider's queue for the whole ``start_timeout`` of the pool, and was given up.

    Attributes:
        reason: The reason of the wait, in the provider's words.
        limit_s: The ``start_timeout`` in seconds.
        starts_at: The unix time of the expected start; None: unknown.
    """

    def __init__(self, message: str, *, reason: str = "", limit_s: float = 0.0, starts_at: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.limit_s, self.starts_at = reason, limit_s, starts_at


class QuotaError(CapacityError):
    """The account's limit is too low, not the cloud's stock: request more quota, or use less."""


class NetworkError(CapacityError):
    """The provider's service cannot be reached from this computer, so no machine was asked for."""


class BudgetExceeded(OutriderError):
    """The pool reached a limit of its user, and was ended.

    Attributes:
        what: "max_cost" or "max_lifetime".
        limit: The limit, in USD or seconds.
        spent: The cost of the pool in USD.
        since: The unix time at which the pool began.
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

    The pool has ended, or has not started. Results are not affected: do not repeat work because of this error. Its
    cause says what went wrong, such as an `AuthError`.

    Attributes:
        machines: The ids of machines that may still run. Empty: perhaps some with unknown ids.
        left: Further resources, which cost nothing.
        by: The unix time by which the machines end themselves, by their lease. None: unknown.
    """

    def __init__(
        self, message: str, *, machines: Sequence[str] = (), left: Sequence[str] = (), by: float | None = None
    ) -> None:
        super().__init__(message)
        self.machines, self.left, self.by = tuple(machines), tuple(left), by


class AuthError(OutriderError):
    """The provider does not accept the credentials: missing, wrong, expired or without the permission."""


class HostKeyError(AuthError):
    """A host presented another key than the known one, so this program sent nothing to it."""


class PoolClosed(OutriderError):
    """The pool has ended, or ended before this call was done: open another pool."""


class PoolIdle(PoolClosed):
    """The pool did nothing for its whole ``max_idle``, and was ended. Running calls raise it as well.

    Attributes:
        since: The unix time at which the idle time began.
        idle_s: The idle time in seconds.
        limit: The ``max_idle`` in seconds.
        gpus: The number of GPUs.
        use: The highest use of any GPU in that time, from 0 to 1; without GPUs, how many processors of a node were in
            use.
        calls: The number of calls that had not ended.
        spent: The cost of the pool in USD.
        hourly: The cost per hour at the end, in USD.
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
    """The image could not be installed on a machine.

    Attributes:
        phase: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run", "executor" or "plugins".
        command: The command that failed; None if no command failed.
        exit_status: Its exit status; None if no command failed.
        log: The last lines of its log.
        hint: What to do.
        systematic: Whether every machine would fail in the same way, because the image needs something that does not
            exist.
        machine: The machine that failed.
        node: The number of the node.
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
        """Return the same error, for this machine and node."""
        names = ("phase", "command", "exit_status", "log", "hint", "systematic")
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        where = machine if node is None else f"node {node} ({machine})"
        error = BootstrapError(f"{where}: {self}", machine=machine, node=node, **facts)
        error.__cause__ = self.__cause__
        return error


class VersionMismatch(OutriderError):
    """Client and node run incompatible versions.

    Attributes:
        node: The number of the node.
        versions: Triples of a name, the version here, and the version there.
    """

    def __init__(self, message: str, *, node: int | None = None, versions: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.node, self.versions = node, tuple(versions)


class SerializationError(OutriderError):
    """A value cannot be pickled here, or unpickled there.

    Attributes:
        path: The place of the value, such as ``args[0]['model'].lock``.
        task: The number of the task.
        kind: The type of the value.
    """

    def __init__(self, message: str, *, path: str = "", task: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.path, self.task, self.kind = path, task, kind


class TransferError(OutriderError):
    """A file could not be fetched from a node, pushed to one, or written here.

    Attributes:
        path: The path here, or the name there.
        node: The number of the node, as `instance_info` has it.
        full: Whether no space is left.
    """

    def __init__(self, message: str, *, path: str = "", node: int | None = None, full: bool = False) -> None:
        super().__init__(message)
        self.path, self.node, self.full = path, node, full


class CheckpointError(OutriderError):
    """A checkpoint could not be written or read.

    Attributes:
        run: The name of the run.
        url: The place of the checkpoint.
        full: Whether no space is left.
    """

    def __init__(self, message: str, *, run: str = "", url: str = "", full: bool = False) -> None:
        super().__init__(message)
        self.run, self.url, self.full = run, url, full


class CheckpointFenced(CheckpointError):
    """A newer world has taken the run over: this one cannot save any more."""


class _Attempted(TypedDict, total=False):
    task: str
    node: int | None
    rank: int
    attempt: int


class TaskError(OutriderError):
    """The base of errors of one task.

    Attributes:
        task: The number of the task.
        node: The number of the node; None if the task never was on one.
        rank: The rank in a broadcast.
        attempt: The attempt.
    """

    def __init__(
        self, message: str, *, task: str = "", node: int | None = None, rank: int = 0, attempt: int = 0
    ) -> None:
        super().__init__(message)
        self.task, self.node, self.rank, self.attempt = task, node, rank, attempt


class TaskFailed(TaskError):
    """The function raised an error that cannot be raised here as itself.

    Attributes:
        kind: The type of the error.
        traceback: The traceback there, as text.
        versions: Differences between the versions here and there.
    """

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
    """The ``setup`` of the function raised in the task's process; the cause is its error. Another call tries again."""


class TaskTimeout(TaskError, TimeoutError):
    """The task ran longer than its ``timeout``; its process tree is gone.

    Attributes:
        timeout_s: The timeout in seconds.
    """

    def __init__(self, message: str, *, timeout_s: float | None = None, **attempted: Unpack[_Attempted]) -> None:
        super().__init__(message, **attempted)
        self.timeout_s = timeout_s


class TaskStalled(TaskError):
    """The task gave no sign of life for longer than its ``stall``, and its further attempts are used up."""


class QueueTimeout(TaskError, TimeoutError):
    """The task waited longer than its ``queue_timeout`` for a free slot; it never ran."""


class DeadlineExceeded(TaskError, TimeoutError):
    """The call was not done within its ``deadline`` after its submission; all running parts of it were ended.

    Attributes:
        deadline_s: The deadline in seconds.
        where: What the call was doing, in words.
        outcomes: The outcome of each rank of a broadcast.
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
    """The task's process died. If neither exit code nor signal is known, it was perhaps out of memory.

    Attributes:
        exit_code: The exit code of the process, or None.
        signal: The signal that killed it, or None.
        out_of_memory: Whether it was killed because memory ran out.
    """

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
    """The task's node was lost, and the task was not retried, or could not be.

    Attributes:
        losses: The node and the cause of the loss, for each attempt.
        outcomes: For a broadcast with ``on_loss="fail"``: the outcome of every rank.
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
    """Every attempt of the task took its node down, so no further node runs it."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The outcome of one rank of a broadcast: its value or its error.

    Attributes:
        rank: The rank.
        node: The number of the node.
        error: The error of the rank, or None.
        load: Internal: loads the value, for `result`.
    """

    rank: int
    node: int | None
    error: Exception | None
    load: Callable[[], Any] | None = None  # unpickles the value at its first use

    def result(self) -> Any:
        """Return the rank's value.

        Raises:
            Exception: The rank's own error.
        """
        if self.error is not None:
            raise self.error
        return None if self.load is None else self.load()


@dataclass(frozen=True, slots=True, eq=False)
class ItemOutcome(Generic[_T]):
    """The outcome of one item of a map, or of one call of `Pool.as_completed`.

    Attributes:
        index: The number of the item or call, from 0.
        value: Its value, or None.
        error: Its error, or None.
    """

    index: int
    value: _T | None = None
    error: Exception | None = None

    def result(self) -> _T:
        """Return the value.

        Raises:
            Exception: The item's own error.
        """
        if self.error is not None:
            raise self.error
        return cast("_T", self.value)


class BroadcastFailed(OutriderError, ExceptionGroup[Exception]):
    """Ranks of a broadcast failed: a group of their exceptions, each with its ``rank``.

    Attributes:
        first: The outcome of the rank that failed first; the message and the group begin with its error. Others that
            failed soon after it may have lost it as their peer. The order follows from the time of each failure, by the
            clock of its node, and from the error itself: an error about a lost connection comes from another rank.
        outcomes: The outcomes of all ranks, by rank.
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
        """Return a group of some of the exceptions, with the same outcomes, for ``except*``."""
        return BroadcastFailed(self.message, excs, self.outcomes, self.first)

    def __reduce__(self) -> tuple[Any, ...]:
        # Outcomes without a use so far are bytes in this process, and stay here.
        return BroadcastFailed, (self.message, self.exceptions), {"__notes__": list(getattr(self, "__notes__", ()))}


class RemoteTraceback(Exception):
    """The cause of an error that was raised on a node. Its ``text`` is the traceback there, as in the error's note."""

    def __init__(self, summary: str, text: str = "") -> None:
        super().__init__(plain(summary))
        self.text = plain(text)
