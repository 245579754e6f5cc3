"""All errors that users can catch. `engine.serialization` creates them from the reports of nodes and providers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast

from ...lazy_dataclass import dataclass
from .printable import all_plain, plain

_T = TypeVar("_T")


class OutriderError(Exception):
    """The base class of all errors.

    The message explains what happened, why, and what to do; attributes have the details.

    Control characters except newline and tab are removed from messages, attributes and notes, because these may contain
    text from other computers.

    Attributes:
        cleanup: The error of the clean-up that followed, if this error ended a pool. This error is also in the notes.
            None: the clean-up succeeded.
    """

    cleanup: CleanupError | None = None

    def __init__(self, *args: object) -> None:
        super().__init__(*map(all_plain, args))

    def __setattr__(self, name: str, value: object) -> None:
        if name == "__notes__" and type(value) is list:
            # the list itself is changed: `add_note` sets this attribute to its list, and then appends to the list
            value[:] = all_plain(value)
            super().__setattr__(name, value)
        else:
            super().__setattr__(name, all_plain(value))

    def add_note(self, note: str, /) -> None:
        """Add a note, after removing control characters from it."""
        super().add_note(plain(note))


class SpecError(OutriderError, ValueError):
    """An option, size or name is wrong and can never work. Nothing was started or lost."""


class NotACall(SpecError, TypeError):
    """The argument is not a pending call of a `@compute` function."""


class CapacityError(OutriderError):
    """Too few machines were available.

    Attributes:
        wanted: The number of nodes that was needed.
        got: The number of nodes that were ready.
        outcomes: The outcomes of all ranks, if a broadcast had started.
    """

    def __init__(self, message: str, *, wanted: int = 0, got: int = 0) -> None:
        super().__init__(message)
        self.wanted, self.got = wanted, got
        self.outcomes: tuple[Outcome, ...] = ()


class StartTimeout(CapacityError, TimeoutError):
    """A machine waited in its provider's queue for the whole ``start_timeout``, so the pool withdrew its request.

    Attributes:
        reason: The reason of the wait, in the provider's words.
        limit_s: The ``start_timeout`` in seconds.
        starts_at: The unix time of the machine's expected start. None: unknown.
    """

    def __init__(self, message: str, *, reason: str = "", limit_s: float = 0.0, starts_at: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.limit_s, self.starts_at = reason, limit_s, starts_at


class QuotaError(CapacityError):
    """A quota of the account is too low; the cloud itself may have machines. Request more quota, or use less."""


class NetworkError(CapacityError):
    """The provider's service cannot be reached from this computer, so no machine was requested."""


class BudgetExceeded(OutriderError):
    """The pool reached one of the limits ``max_cost`` and ``max_lifetime``, and was ended.

    Attributes:
        what: The limit that was reached: "max_cost" or "max_lifetime".
        limit: The limit, in USD (max_cost) or seconds (max_lifetime).
        spent: The cost of the pool in USD.
        since: The unix time at which the pool began.
    """

    def __init__(
        self, message: str, *, what: str = "", limit: float = 0.0, spent: float = 0.0, since: float = 0.0
    ) -> None:
        super().__init__(message)
        self.what, self.limit, self.spent, self.since = what, limit, spent, since


class RunStopped(OutriderError):
    """The pool was ended from outside, by the command `outrider stop`."""


class CleanupError(OutriderError):
    """The end of the pool's machines is not confirmed, so they may still cost money.

    The pool has ended, or has not started. Results are not affected, so do not repeat work because of this error. Its
    ``__cause__`` is the reason, such as an `AuthError`.

    Attributes:
        machines: The ids of machines that may still run. Empty: machines with unknown ids may still run.
        left: Other resources that may still exist, but cost nothing.
        by: The unix time by which the machines end themselves, because their lease ends. None: unknown.
    """

    def __init__(
        self, message: str, *, machines: Sequence[str] = (), left: Sequence[str] = (), by: float | None = None
    ) -> None:
        super().__init__(message)
        self.machines, self.left, self.by = tuple(machines), tuple(left), by


class AuthError(OutriderError):
    """The provider rejects the credentials: they are missing, wrong, expired or lack a permission."""


class HostKeyError(AuthError):
    """A host's SSH key differs from the key that is known for this host, so this program sent no data to the host."""


class PoolClosed(OutriderError):
    """The pool has already ended, or it ended before this call was done. Open another pool."""


class PoolIdle(PoolClosed):
    """The pool was ended because it was idle for ``max_idle`` seconds. Running calls raise this error, too.

    Attributes:
        since: The unix time at which the idle time began.
        idle_s: The idle time in seconds.
        limit: The ``max_idle`` in seconds.
        gpus: The number of GPUs.
        use: The highest utilization of any GPU in the idle time, from 0 to 1; in a pool without GPUs, the highest
            number of processors that a node used.
        calls: The number of calls that had not ended when the pool was ended.
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
        exit_status: The exit status of the failed command; None if no command failed.
        log: The last lines of the installation's output.
        hint: What to do.
        systematic: Whether every machine would fail like this one, because the image needs something that does not
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
        """Return a copy of the error that has this machine and this node as attributes."""
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
        versions: A tuple (name, version in this program, version on the node) for each difference.
    """

    def __init__(self, message: str, *, node: int | None = None, versions: Sequence[tuple[str, str, str]] = ()) -> None:
        super().__init__(message)
        self.node, self.versions = node, tuple(versions)


class SerializationError(OutriderError):
    """A value cannot be pickled or unpickled, in this program or on a node.

    Attributes:
        path: The place of the value, such as ``args[0]['model'].lock``.
        task: The number of the task.
        kind: The type of the value.
    """

    def __init__(self, message: str, *, path: str = "", task: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.path, self.task, self.kind = path, task, kind


class TransferError(OutriderError):
    """A file could not be copied from or to a node, or not be written on this computer.

    Attributes:
        path: The path of the file on this computer, or its name on the node.
        node: The number of the node, as in `instance_info`.
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
    """A newer generation of the broadcast has taken over the run's checkpoints, so this one can no longer save."""


class _Attempted(TypedDict, total=False):
    task: str
    node: int | None
    rank: int
    attempt: int


class TaskError(OutriderError):
    """The base of errors of one task.

    Attributes:
        task: The number of the task.
        node: The number of the node; None if the task never was on a node.
        rank: The rank in a broadcast.
        attempt: The number of the attempt.
    """

    def __init__(
        self, message: str, *, task: str = "", node: int | None = None, rank: int = 0, attempt: int = 0
    ) -> None:
        super().__init__(message)
        self.task, self.node, self.rank, self.attempt = task, node, rank, attempt


class TaskFailed(TaskError):
    """The function raised an error that cannot be raised in this program in its original type.

    Attributes:
        kind: The type of the error.
        traceback: The traceback on the node, as text.
        versions: Differences between the versions in this program and on the node.
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
    """The ``setup`` of the function raised an error in the task's process; that error is the cause.

    Another call retries it.
    """


class TaskTimeout(TaskError, TimeoutError):
    """The task ran longer than its ``timeout``; its process tree is gone.

    Attributes:
        timeout_s: The timeout in seconds.
    """

    def __init__(self, message: str, *, timeout_s: float | None = None, **attempted: Unpack[_Attempted]) -> None:
        super().__init__(message, **attempted)
        self.timeout_s = timeout_s


class TaskStalled(TaskError):
    """The task showed no sign of progress for longer than its ``stall``, and its further attempts are used up."""


class QueueTimeout(TaskError, TimeoutError):
    """The task waited longer than its ``queue_timeout`` for a free slot; it never ran."""


class DeadlineExceeded(TaskError, TimeoutError):
    """The call was not done within ``deadline`` seconds after its submission; its running tasks were ended.

    Attributes:
        deadline_s: The deadline in seconds.
        where: A description of the call's state when its time was over.
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
    """The task's process died. If neither exit code nor signal is known, it may have run out of memory.

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
    """The pool itself ended the task: the task was cancelled, or another rank of its broadcast had failed."""


class NodeLost(TaskError):
    """The task's node was lost, and the task could not run again, or was not allowed to.

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
    """Each attempt of the task made its node fail, so the task is not tried on another node."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The outcome of one rank of a broadcast: its value or its error.

    Attributes:
        rank: The rank.
        node: The number of the node.
        error: The error of the rank, or None.
        load: Internal: unpickles the value for `result`.
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
        index: The index of the item or call, from 0.
        value: The result of the item or call, or None.
        error: The error of the item or call, or None.
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
    """Ranks of a broadcast failed. This is a group of their exceptions, each with a ``rank``.

    Attributes:
        first: The outcome of the rank that failed first; the message and the group begin with its error. Ranks that
            failed soon afterwards may have failed because they lost this rank as their peer. The order is that of the
            failures' times, by the clocks of the nodes, except that an error about a lost connection counts as a
            consequence of another rank's failure.
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
        """Return a group of some of the exceptions, with the same outcomes; Python calls this for ``except*``."""
        return BroadcastFailed(self.message, excs, self.outcomes, self.first)

    def __reduce__(self) -> tuple[Any, ...]:
        # Outcomes are not pickled, because unused ones are bytes in this process.
        return BroadcastFailed, (self.message, self.exceptions), {"__notes__": list(getattr(self, "__notes__", ()))}


class RemoteTraceback(Exception):
    """The cause of an error that was raised on a node.

    ``text`` is the traceback on the node, as in the error's note.
    """

    def __init__(self, summary: str, text: str = "") -> None:
        super().__init__(plain(summary))
        self.text = plain(text)
