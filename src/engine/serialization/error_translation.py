"""Translation of the ends of attempts and of pools, as nodes, actors and providers report them, into the values and
errors that users get.

An attempt is one try to run a task. A value is unpickled when the user asks for it. The end of every attempt passes
through this module.

Of a broadcast, the rank that failed first is the cause: the other ranks fail as a consequence, and may be reported
earlier. The time of the reports is not enough to find that rank: a failing process closes its connections before its
node can report the failure. So the errors of other ranks about a lost peer can arrive some milliseconds earlier.
"""

from __future__ import annotations

import copy
import math
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import IntEnum
from functools import partial
from typing import Any, Literal, assert_never, cast

from ...actors.amounts import GB, Amounts
from ...actors.interfaces import ConnectFailed, Ending, GaveUp, NoWorkers, QueuedTooLong, Reason, Settled, Verdict
from ...actors.kernel import ActorFailed
from ...lazy_named_tuple import NamedTuple
from ...providers import errors as provider
from ..api import errors
from ..api.printable import plainly, sentence
from ..wire import values
from ..wire.messages import Cause, Ended, Failed
from .error_notes import (
    AttemptPlace,
    how_to_import,
    located,
    ranks_of,
    task_pickling_error,
    tell_equal_ones_once,
    unloadable_error,
)
from .payload import Received
from .task_payload import Payload
from .versions import package_versions

# Failures within this time after the first report may be consequences of the same failure. The kernel may take 5 s to
# end a process that has tens of gigabytes of memory or several GPUs.
FOLLOWS_S = 5.0
ERROR_CHARS = 300
_PEER_GONE = (
    r"(?i)connection (was )?(likely )?(closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe"
    r"|socket closed|remote process exited|ncclRemoteError|peer (is )?(down|gone|lost)|recv, got 0 bytes"
    r"|heartbeat timeout|coordination service"
)


class Sign(IntEnum):
    """The kind of a failure.

    The smaller the number, the more likely this failure caused the failures of the other ranks.
    """

    OWN = 0  # the failure does not point to another rank
    ABORTED = 1  # the process aborted: libraries do so when they lose a peer, but also for errors of their own
    PEER_GONE = 2  # the failure is that another rank could not be reached


class Failure(NamedTuple):
    rank: int
    at: float  # time of the failure in seconds on the pool's clock
    sign: Sign


def first_of(failures: Sequence[Failure]) -> Failure:
    """Return the failure that most likely caused the others. ``failures`` must not be empty.

    Of the earliest failure and the failures within `FOLLOWS_S` after it, choose the one with the smallest `Sign`; of
    several such failures, choose the earliest.
    """
    earliest = min(failure.at for failure in failures)
    near = [failure for failure in failures if failure.at <= earliest + FOLLOWS_S]
    return min(near, key=lambda failure: (failure.sign, failure.at, failure.rank))


def sign_of(error: Exception) -> Sign:
    if isinstance(error, errors.TaskKilled):
        return Sign.ABORTED if error.signal == signal.SIGABRT else Sign.OWN
    if isinstance(error, ConnectionError) or re.search(_PEER_GONE, _text(error)):
        return Sign.PEER_GONE
    return Sign.OWN


def summary(task: str, first: errors.Outcome, others: Sequence[errors.Outcome], size: int, within_s: float) -> str:
    """Return the error message for a broadcast.

    The ranks in ``others`` failed at most ``within_s`` seconds before or after the first rank.
    """
    sentence = f"{task} failed on rank {first.rank} of {size}: {_described(first)}"
    if not others:
        return sentence
    ranks = "1 rank" if len(others) == 1 else f"{len(others)} ranks"
    rounded = math.ceil(within_s * 10) / 10 if within_s < 10 else math.ceil(within_s)
    return f"{sentence}; {ranks} followed within {max(0.1, rounded):g} s ({ranks_of(others)})"


def _described(first: errors.Outcome) -> str:
    error = first.error
    if not isinstance(error, errors.TaskError):
        line = " ".join(_text(error).split())
        return _shortened(f"{type(error).__name__}: {line}" if line else type(error).__name__)
    # remove the place from the text, because the message already names it
    place = re.compile(r"^.*? on node \d+ \(rank \d+, attempt \d+\) ")
    return _shortened(" ".join(place.sub("it ", str(error)).split()).rstrip("."))


def _shortened(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}..."


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  its __str__ is the user's code
        return ""


# how the pool's `with` block ended: it never began, it ended with an error, or it ended without an error
BlockEnd = Literal["unstarted", "failed", "finished"]
UNCONFIRMED: dict[BlockEnd, str] = {
    "unstarted": "The pool did not start, and it is not confirmed that the machines that it asked for have ended",
    "failed": "The pool has ended, and it is not confirmed that its machines have ended",
    "finished": (
        "The pool has ended, and what it returned is whole; but it is not confirmed that its machines have ended"
    ),
}


def pool_error(error: BaseException, block_end: BlockEnd) -> BaseException:
    """Return the error that a user gets for the error that ended a pool. A public error is returned unchanged."""
    failure = _only(error)
    match failure:
        case provider.NotGone():
            return cleanup_error(failure, block_end)
        case ActorFailed():
            story = f"{type(failure.__cause__).__name__}: {failure.__cause__}"
            closed = errors.PoolClosed(f"The pool ended by a defect of Outrider's own ({story}).")
            closed.__cause__ = plainly(error)
            return closed
        case provider.ProviderError() | ConnectFailed() | NoWorkers() | QueuedTooLong():
            translated = (
                provider_error(failure) if isinstance(failure, provider.ProviderError) else no_node_error(failure)
            )
            for note in getattr(failure, "__notes__", ()):  # the notes are about failures of other nodes
                translated.add_note(note)
            return translated
        case _:
            return failure


def not_ready_error(failed: Exception | None, ready: int, least: int, within_s: float) -> errors.OutriderError:
    """Return the error for a pool that has too few ready nodes. ``failed``: the error of the last node that failed."""
    counts = f"{ready} of the {least} nodes that the pool needs were ready within {within_s:g} s"
    if failed is None:
        story = f"{counts}, and none has failed: give them longer, by boot_timeout."
        return errors.CapacityError(story, wanted=least, got=ready)
    reason = pool_error(failed, "unstarted")
    if not isinstance(reason, errors.OutriderError):
        reason = errors.CapacityError(str(failed), wanted=least, got=ready)
    reason.add_note(f"Only {counts}.")
    return reason


def no_node_error(failure: Exception) -> Exception:  # noqa: PLR0911  a table
    match failure:
        case provider.NoCapacity(__cause__=ConnectFailed() as refused):
            return no_node_error(refused)
        case provider.ProviderError():
            return provider_error(failure)
        case ConnectFailed(__cause__=errors.OutriderError() as cause):
            return cause
        case ConnectFailed(step=str(step)) if step:
            story = f"{sentence(failure)}. Give nodes longer by Pool(boot_timeout=...), or less to install."
            return errors.BootstrapError(story, phase=step)
        case ConnectFailed():
            return errors.ConnectionLost(f"{sentence(failure)}. So a node could not be reached.")
        case QueuedTooLong():
            return _start_timeout(failure)
        case NoWorkers():
            return errors.CapacityError(
                f"{sentence(failure)}. So none of several nodes in a row could start a worker: look for the cause in "
                "their image and plugins, and in the memory and disk that they have."
            )
        case _:
            return failure


def _start_timeout(failure: QueuedTooLong) -> errors.StartTimeout:
    at, expected = failure.starts_at, ""
    if at is not None:
        expected = f", expected to start at {time.strftime('%Y-%m-%d %H:%M', time.localtime(at))}"
    story = (
        f"A machine waited for {failure.limit_s:g} s, the pool's start_timeout, and has not started: "
        f"{sentence(failure.reason)}{expected}. It was given back. Allow it more by Pool(start_timeout=...), ask for "
        "fewer or smaller machines, or ask elsewhere."
    )
    return errors.StartTimeout(story, reason=failure.reason, limit_s=failure.limit_s, starts_at=at)


def provider_error(error: provider.ProviderError) -> errors.OutriderError:  # noqa: PLR0911  a table
    text, advice = sentence(error), error.advice
    match error:
        case provider.NotAuthorized():
            return errors.AuthError(f"{text}. {advice or 'The provider does not let you in: check its credentials.'}")
        case provider.QuotaExceeded():
            limit = "This is your account's limit: ask for more quota, or for fewer nodes."
            return errors.QuotaError(f"{text}. {advice or limit}")
        case provider.BadRequest():
            return errors.SpecError(f"{text}. {advice or 'The provider can never give what was asked for.'}")
        case provider.JournalError():
            return errors.OutriderError(f"{text}. Nothing was created.")
        case provider.Unreachable():
            return errors.NetworkError(f"{text}. {advice or 'Nothing was started: try again when the network is up.'}")
        case provider.NoCapacity():
            nothing = "The provider has no machines to give: try again, or elsewhere."
            return errors.CapacityError(f"{text}. {advice or nothing}")
        case _:
            failed = errors.CapacityError(f"{text}. {advice or 'The provider failed: try again, or elsewhere.'}")
            failed.__cause__ = None if error.__cause__ is None else plainly(error.__cause__)
            return failed


def cleanup_error(trouble: provider.NotGone, block_end: BlockEnd) -> errors.CleanupError:
    which = ", ".join(trouble.machines) or "machines of which nobody was told"
    ends = "" if trouble.by is None else f" They end themselves {by_lease(trouble.by)}."
    others = f" Left at no cost: {', '.join(trouble.left)}." if trouble.left else ""
    error = errors.CleanupError(
        f"{UNCONFIRMED[block_end]} ({sentence(trouble.why)}): {which} may still be running.{ends}{others} "
        "`outrider gc` shows what is left, and `outrider gc --apply` ends it.",
        machines=trouble.machines,
        left=trouble.left,
        by=trouble.by,
    )
    cause = trouble.__cause__
    error.__cause__ = provider_error(cause) if isinstance(cause, provider.NotAuthorized) else cause
    return error


def by_lease(by: float) -> str:
    """Return a text that says when the machines end by themselves. ``by``: that time in unix seconds."""
    return f"by {time.strftime('%H:%M', time.localtime(by + 59))} at the latest, by their lease"


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


# verdicts for which a rank failed by itself, and was not only stopped or lost
_FAILURES = {Verdict.RAISED, Verdict.DIED, Verdict.TERMINATED, Verdict.TIMED_OUT}


def unpack(ending: Ending, payload: Payload, queue_timeout_s: float | None = None) -> Any:
    """Return the task's value.

    Raises:
        Exception: the user's own error, with a note about where it was raised; or an `OutriderError`.
        BaseException: the error of an input that failed, even if the task ignored it.
    """
    for source in payload.inputs:
        if source.fatal is not None:
            raise source.fatal
    if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
        return _result(ending, payload)
    raise error_of(ending, payload, queue_timeout_s)


def _result(ending: Settled, payload: Payload) -> Any:
    received = cast("Received", ending.outcome)
    if payload.keep is not None:
        return payload.keep.result(received, f"{payload.name} on node {ending.node}")
    try:
        return values.load(received.data, received.sizes)
    except (Exception, SystemExit) as error:
        raise unloadable_error(error, f"The result of {_place(ending, payload)}", payload.name) from error


def error_of(ending: Ending, payload: Payload, queue_timeout_s: float | None = None) -> Exception:
    if isinstance(ending, GaveUp):
        return gave_up_error(ending, payload.name, queue_timeout_s=queue_timeout_s)
    place = _place(ending, payload)
    if ending.verdict in {Verdict.RAISED, Verdict.UNSENT}:
        failed, received = cast("tuple[Failed, Received | None]", ending.outcome)
        load = None if received is None else partial(values.load, received.data, received.sizes)
        return failed_error(failed, place, load)
    return ended_error(cast("Ended", ending.outcome), place, payload.timeout_s, payload.needs)


def unpack_all(endings: Sequence[Ending], payload: Payload) -> list[Any]:
    """Return the values of all ranks of a broadcast, in the order of the ranks.

    All errors except the last have an attribute with the outcomes of all ranks.

    Raises:
        BroadcastFailed: some ranks failed.
        NodeLost, CapacityError: some ranks were lost, and their nodes were not replaced.
        DeadlineExceeded: some ranks were still running at the deadline, and none had failed.
        OutriderError: the whole broadcast could not be run.
    """
    if all(isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED for ending in endings):
        return [unpack(ending, payload) for ending in endings]
    outcomes = [_outcome(ending, payload, rank) for rank, ending in enumerate(endings)]
    raised = [each.error for each in outcomes if each.error is not None]
    if all(isinstance(ending, GaveUp) for ending in endings):
        raise raised[0]
    gave_up = (each.error for each, ending in zip(outcomes, endings, strict=True) if isinstance(ending, GaveUp))
    lost = next((error for error in gave_up if isinstance(error, errors.NodeLost | errors.CapacityError)), None)
    if lost is not None:
        lost.outcomes = tuple(outcomes)
        raise lost
    late = next((each.error for each in outcomes if isinstance(each.error, errors.DeadlineExceeded)), None)
    if late is not None and not any(isinstance(each, Settled) and each.verdict in _FAILURES for each in endings):
        late.outcomes = tuple(outcomes)
        raise late
    raise broadcast_error(payload.name, outcomes, _failed_at(endings))


def load_value(received: Received, task: str) -> Any:
    try:
        return values.load(received.data, received.sizes)
    except (Exception, SystemExit) as error:
        raise unloadable_error(error, f"A value of {task}", task) from error


def load_large(received: Received, task: str) -> Any:
    """Load a value as `load_value` does, then release the memory of the pickled bytes.

    Call this function in a thread, because it may take long.
    """
    value = load_value(received, task)
    received.drop()
    return value


def failed_error(failed: Failed, place: AttemptPlace, load: Callable[[], object] | None) -> Exception:
    """Return the exception to raise for ``failed``: the user's own exception if it can be unpickled.

    ``load`` unpickles the exception, and is called at most once. None: the node could not pickle the exception.
    """
    match failed.phase:
        case "call":
            return located(_own_error(failed, place, load), place, failed.traceback)
        case "load" | "dump":
            return located(task_pickling_error(failed, place, load), place, failed.traceback)
        case "setup":
            story = f"the setup of {place} raised {failed.kind}: {failed.message}. The next call tries it again."
            error = errors.SetupFailed(story, **asdict(place))
            error.__cause__ = located(_own_error(failed, place, load), place, failed.traceback)
            return error
        case "lost":
            return errors.NodeLost(f"{place.task} was not run: {failed.message}. Run that again.", **asdict(place))
        case "node":
            message = f"{place} could not be run there: {failed.message}."
        case "fetch":
            message = f"{place} has returned, and its result could not be fetched: {_lacking(failed)}"
        case _:
            message = f"{place.task} could not be sent to node {place.node}: {_lacking(failed)}"
    return errors.TaskFailed(message, kind=failed.kind, **asdict(place))


def _lacking(failed: Failed) -> str:
    look = "See whether this computer and the node have memory and file descriptors left."
    return f"{failed.kind}: {failed.message}. {look}"


def ended_error(
    ended: Ended, place: AttemptPlace, timeout_s: float | None = None, needs: Amounts | None = None
) -> errors.TaskTimeout | errors.TaskKilled:
    facts = asdict(place)
    also = f"; {ended.detail}" if ended.detail else ""
    match ended.cause:
        case Cause.TIMEOUT:
            limit = "its timeout" if timeout_s is None else f"its timeout of {timeout_s:g} s"
            message = f"{place} ran longer than {limit} and was ended: give it more, or less to do{also}."
            return errors.TaskTimeout(message, timeout_s=timeout_s, **facts)
        case Cause.EXIT:
            message = f"{place} ended its process with exit status {ended.code} instead of returning or raising{also}."
            return errors.TaskKilled(message, exit_code=ended.code, **facts)
        case Cause.SIGNAL:
            story = "" if also and ended.code == signal.SIGKILL else _signal_story(ended.code)
            message = f"{place} was killed by {_signal_name(ended.code)}{story}{also}."
            return errors.TaskKilled(message, signal=ended.code, **facts)
        case Cause.MEMORY:
            message = f"{place} ran out of memory and was killed by the kernel: use less, or nodes with more{also}."
            return errors.TaskKilled(message, out_of_memory=True, signal=signal.SIGKILL, **facts)
        case Cause.LIMIT:
            limit = f"memory_gb={0.0 if needs is None else needs.memory_bytes / GB:.3g}"
            message = (
                f"{place} used {ended.code / GB:.3g} GB of its {limit} and was ended with all that it had started: "
                f"give it more, as by .with_(memory_gb={float(f'{1.5 * ended.code / GB:.2g}'):g}), or less to do{also}."
            )
            return errors.TaskKilled(message, out_of_memory=True, signal=signal.SIGKILL, **facts)
        case Cause.KILLED | Cause.UNKNOWN:
            return errors.TaskStopped(f"{place} was stopped by the pool.", **facts)
        case _:
            assert_never(ended.cause)


def gave_up_error(  # noqa: PLR0911, PLR0912  one for each reason
    ending: GaveUp, task: str, *, queue_timeout_s: float | None = None
) -> errors.OutriderError:
    losses = tuple((int(node), cause) for node, cause in ending.losses)
    story = "; ".join(f"node {node}: {cause}" for node, cause in losses) or "its node went away"
    node = losses[-1][0] if losses else None
    where: dict[str, Any] = {"task": task, "node": node, "rank": ending.rank, "attempt": len(losses)}
    match ending.reason:
        case Reason.LOST if ending.failure is not None:
            return _lost_input(ending.failure, task)
        case Reason.LOST:
            message = f"{task} was lost with its node and may not be run again ({story})."
            return errors.NodeLost(message, losses=losses, **where)
        case Reason.QUARANTINED:
            message = (
                f"Each attempt of {task} took its node down, so it is not tried again ({story}): look there first."
            )
            return errors.TaskQuarantined(message, losses=losses, **where)
        case Reason.LOSING:
            message = f"{task} lost nodes faster than it could run and was given up ({story})."
            return errors.NodeLost(message, losses=losses, **where)
        case Reason.NO_REPLACEMENT:
            return _no_replacement(ending.failure, task, story if losses else "")
        case Reason.NO_SUCH_RANK:
            return errors.CapacityError(
                f"{task} waits for the node of a rank, by on=, that the pool does not have: resize it."
            )
        case Reason.NO_PORTS:
            return errors.CapacityError(
                f"{task} was not run: {ending.why}. Raise the limit of open files there (ulimit -n; an eighth of it is "
                "kept as ports), or run fewer ranks per node."
            )
        case Reason.TOO_LARGE:
            return errors.SpecError(
                f"{task} was not run: it needs {ending.why}. Ask for less, or for larger nodes (vcpus=, memory_gb= and "
                "accelerator= of the pool)."
            )
        case Reason.STALLED:
            return errors.TaskStalled(
                f"{task} gave no sign of life for longer than its stall, as often as it may be run again: "
                "`outrider stacks` and the stacks in the run's record show where it hangs.",
                **where,
            )
        case Reason.QUEUE_TIMEOUT:
            limit = "its queue_timeout" if queue_timeout_s is None else f"its queue_timeout of {queue_timeout_s:g} s"
            return errors.QueueTimeout(f"{task} waited longer than {limit} for a free slot and never ran.", task=task)
        case Reason.DEADLINE:
            limit = "its deadline" if ending.limit_s is None else f"its deadline of {ending.limit_s:g} s"
            message = f"{task} was not done at {limit} and was ended: {ending.why}. Give it more, or less to do."
            return errors.DeadlineExceeded(message, deadline_s=ending.limit_s, where=ending.why, **where)
        case Reason.CANCELLED:
            return errors.TaskStopped(f"{task} was cancelled.", **where)
        case Reason.CLOSED:
            if isinstance(ending.failure, errors.PoolIdle):
                # a copy for each waiting caller, because raising adds a traceback to the error
                return copy.copy(ending.failure)
            return errors.PoolClosed(f"The pool ended before {task} was done.")
        case _:
            assert_never(ending.reason)


def _lost_input(failure: Exception, task: str) -> errors.NodeLost:
    """Return the error for a task of which an input was lost. ``failure``: the error that explains how it was lost."""
    story = str(failure)
    error = errors.NodeLost(f"{task} was not run: {story[:1].lower()}{story[1:]}", task=task)
    error.__cause__ = failure.__cause__
    return error


def _no_replacement(failure: Exception | None, task: str, losses: str) -> errors.CapacityError:
    """Return the error for a task that lost its node, and for which no replacement node started.

    ``failure``: the error of the last replacement that failed. ``losses``: a text about the nodes that the task lost
    before.
    """
    story = f" ({losses})" if losses else ""
    if failure is None:
        return errors.CapacityError(f"{task} needs a node that was lost, and no replacement came{story}.")
    what = "the last node of many is of no use" if isinstance(failure, NoWorkers) else "no replacement came"
    error = errors.CapacityError(f"{sentence(failure)}: so {what}, and {task} needs a node that was lost{story}.")
    error.__cause__ = no_node_error(failure)
    return error


def broadcast_error(
    task: str, outcomes: Sequence[errors.Outcome], failed_at: Sequence[float]
) -> errors.BroadcastFailed:
    """Return the error for a broadcast of which at least one rank failed.

    ``failed_at``: the time of failure of each rank.

    The exception group contains the errors of the ranks that failed by themselves. Ranks that were stopped because
    another rank failed are only in ``outcomes``.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    causes = [outcome for outcome in failed if not isinstance(outcome.error, errors.TaskStopped)] or failed
    failures = [Failure(each.rank, failed_at[each.rank], sign_of(each.error)) for each in causes if each.error]
    first = first_of(failures)
    leading = next(each for each in causes if each.rank == first.rank)
    others = [each for each in causes if each is not leading]
    tell_equal_ones_once([leading, *others])
    within_s = max(abs(failure.at - first.at) for failure in failures)
    message = summary(task, leading, others, len(outcomes), within_s)
    raised = [each.error for each in (leading, *others) if each.error is not None]
    return errors.BroadcastFailed(message, raised, outcomes, leading)


def _failed_at(endings: Sequence[Ending]) -> list[float]:
    """Return the time at which each rank failed, by the pool's clock.

    A node reports how long ago a rank failed (``ago_us``), which is subtracted from the arrival time of the report.
    """

    def failed_at(ending: Settled) -> float:
        outcome = ending.outcome[0] if ending.verdict is Verdict.RAISED else ending.outcome  # type: ignore[index]
        return ending.at - getattr(outcome, "ago_us", 0) / 1e6

    known = {rank: failed_at(ending) for rank, ending in enumerate(endings) if isinstance(ending, Settled)}
    latest = max(known.values(), default=0.0)
    return [known.get(rank, latest) for rank in range(len(endings))]


def _outcome(ending: Ending, payload: Payload, rank: int) -> errors.Outcome:
    if isinstance(ending, GaveUp):
        return errors.Outcome(rank, None, error_of(ending, payload))
    if ending.verdict is Verdict.RETURNED:
        return errors.Outcome(rank, int(ending.node), None, partial(_result, ending, payload))
    return errors.Outcome(rank, int(ending.node), error_of(ending, payload))


def _place(ending: Settled, payload: Payload) -> AttemptPlace:
    return AttemptPlace(payload.name, int(ending.node), ending.rank, ending.number)


def _own_error(failed: Failed, place: AttemptPlace, load: Callable[[], object] | None) -> Exception:
    message = f"{place} raised {failed.kind}: {failed.message}"
    versions: tuple[tuple[str, str, str], ...] = ()
    if load is None:
        message += " (which cannot be pickled: its traceback is below)"
    else:
        try:
            error = load()
        except (Exception, SystemExit) as broken:  # noqa: BLE001  unpickling a user's exception may raise anything
            versions = package_versions(failed.kind, failed.version)
            known = "".join(
                f"; {what} is {here} here" + (f" and {there} there" if there else "") for what, here, there in versions
            )
            message += f" (which cannot be unpickled here: {type(broken).__name__}: {sentence(broken)}{known})"
        else:
            if isinstance(error, ModuleNotFoundError) and (how := how_to_import(failed)):
                error.add_note(how)
            # These must not be raised in the client: SystemExit would end its process, CancelledError would cancel its
            # task, and StopIteration would end an iteration.
            if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
                return error
    return errors.TaskFailed(message, kind=failed.kind, traceback=failed.traceback, versions=versions, **asdict(place))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal_story(number: int) -> str:
    match number:
        case signal.SIGSEGV | signal.SIGBUS | signal.SIGILL | signal.SIGFPE | signal.SIGABRT:
            return ": native code of the task crashed"
        case signal.SIGKILL:
            return ", which somebody on that machine sent"
        case _:
            return ""
