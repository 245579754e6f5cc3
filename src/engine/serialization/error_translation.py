"""Turn how attempts and pools ended, as nodes, providers and actors say it, into what users get: a value, unpickled
when it is asked for, or an error that they can catch. Nothing else does.
"""

from __future__ import annotations

import copy
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, assert_never, cast

from ...actors.amounts import GB, Amounts
from ...actors.interfaces import ConnectFailed, Ending, GaveUp, NoWorkers, Reason, Settled, Verdict
from ...actors.kernel import ActorFailed
from ...providers import errors as provider
from ..api import errors
from ..api.printable import plainly
from ..wire import values
from ..wire.messages import Cause, Ended, Failed
from .error_notes import AttemptPlace, located, tell_equal_ones_once
from .first_failure import Failure, first_of, sign_of, summary
from .function_pickling import import_advice
from .payload import Payload, Received

BlockEnd = Literal["unstarted", "failed", "finished"]  # whether the pool's block began, and ended without an error
UNCONFIRMED: dict[BlockEnd, str] = {
    "unstarted": "The pool did not start, and it is not confirmed that the machines that it asked for have ended",
    "failed": "The pool has ended, and it is not confirmed that its machines have ended",
    "finished": (
        "The pool has ended, and what it returned is whole; but it is not confirmed that its machines have ended"
    ),
}
PICKLING_ADVICE = {  # by the type of what cannot be pickled
    "coroutine": "await it first, and give its result",
    "generator": "annotate its parameter as Iterator[...], and its values are streamed",
    "async_generator": "annotate its parameter as AsyncIterator[...], and its values are streamed",
}


def unpack(ending: Ending, payload: Payload, queue_timeout_s: float | None = None) -> Any:
    """Return the task's value.

    Raises:
        Exception: the user's own, with where it happened; or an `OutriderError`.
    """
    if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
        return _result(ending, payload)
    raise error_of(ending, payload, queue_timeout_s)


def _result(ending: Settled, payload: Payload) -> Any:
    received = cast("Received", ending.outcome)
    try:
        return values.load(received.data, received.sizes)
    except Exception as error:
        raise unloadable_error(error, f"The result of {_place(ending, payload)}", payload.name) from error


def error_of(ending: Ending, payload: Payload, queue_timeout_s: float | None = None) -> Exception:
    if isinstance(ending, GaveUp):
        return gave_up_error(ending, payload.name, queue_timeout_s=queue_timeout_s)
    place = _place(ending, payload)
    if ending.verdict is Verdict.RAISED:
        failed, received = cast("tuple[Failed, Received | None]", ending.outcome)
        load = None if received is None else partial(values.load, received.data, received.sizes)
        return failed_error(failed, place, load)
    return ended_error(cast("Ended", ending.outcome), place, payload.timeout_s, payload.needs)


def unpack_all(endings: Sequence[Ending], payload: Payload) -> list[Any]:
    """Return the values of a broadcast, by rank.

    Raises:
        BroadcastFailed: some ranks failed; each rank's outcome is on it.
        NodeLost, CapacityError: some ranks were lost, and not replaced; the same.
        OutriderError: the broadcast as a whole could not be run.
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
    raise broadcast_error(payload.name, outcomes, _failed_at(endings))


def load_value(received: Received, task: str) -> Any:
    try:
        return values.load(received.data, received.sizes)
    except Exception as error:
        raise unloadable_error(error, f"A value of {task}", task) from error


def failed_error(failed: Failed, place: AttemptPlace, load: Callable[[], object] | None) -> Exception:
    """Return the exception to raise for ``failed``: the user's own wherever that is possible.

    ``load`` unpickles the exception (called once, here); None: the node could not pickle it.
    """
    match failed.phase:
        case "call":
            return located(_own_error(failed, place, load), place, failed.traceback)
        case "load" | "dump":
            return located(_pickling_error(failed, place, load), place, failed.traceback)
        case "setup":
            story = f"the setup of {place} raised {failed.kind}: {failed.message}. The next call tries it again."
            error = errors.SetupFailed(story, **asdict(place))
            error.__cause__ = located(_own_error(failed, place, load), place, failed.traceback)
            return error
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
        case Cause.KILLED:
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
        case Reason.CANCELLED:
            return errors.TaskStopped(f"{task} was cancelled.", **where)
        case Reason.CLOSED:
            if isinstance(ending.failure, errors.PoolIdle):
                return copy.copy(ending.failure)  # each who waits has a traceback of their own
            return errors.PoolClosed(f"The pool ended before {task} was done.")
        case _:
            assert_never(ending.reason)


def _no_replacement(failure: Exception | None, task: str, losses: str) -> errors.CapacityError:
    """``failure``: why the last node that was asked for is not there. ``losses``: of nodes before it, with causes."""
    story = f" ({losses})" if losses else ""
    if failure is None:
        return errors.CapacityError(f"{task} needs a node that was lost, and no replacement came{story}.")
    what = "the last node of many is of no use" if isinstance(failure, NoWorkers) else "no replacement came"
    error = errors.CapacityError(f"{_sentence(failure)}: so {what}, and {task} needs a node that was lost{story}.")
    error.__cause__ = no_node_error(failure)
    return error


def broadcast_error(
    task: str, outcomes: Sequence[errors.Outcome], failed_at: Sequence[float]
) -> errors.BroadcastFailed:
    """Return the error for a broadcast of which at least one rank failed. ``failed_at``: when, of each rank.

    Ranks that were only stopped because another one failed stay out of the group; ``outcomes`` has them.
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
    """Return when each rank failed, by the pool's clock: earlier than it was heard of, as far as its node knows."""

    def failed_at(ending: Settled) -> float:
        outcome = ending.outcome[0] if ending.verdict is Verdict.RAISED else ending.outcome  # type: ignore[index]
        return ending.at - getattr(outcome, "ago_us", 0) / 1e6

    known = {rank: failed_at(ending) for rank, ending in enumerate(endings) if isinstance(ending, Settled)}
    given_up = max(known.values(), default=0.0)
    return [known.get(rank, given_up) for rank in range(len(endings))]


def no_node_error(failure: Exception) -> Exception:  # noqa: PLR0911  a table
    match failure:
        case provider.NoCapacity(__cause__=ConnectFailed() as refused):
            return no_node_error(refused)
        case provider.ProviderError():
            return provider_error(failure)
        case ConnectFailed(__cause__=errors.OutriderError() as told):
            return told
        case ConnectFailed(step=str(step)) if step:
            story = f"{_sentence(failure)}. Give nodes longer by Pool(boot_timeout=...), or less to install."
            return errors.BootstrapError(story, phase=step)
        case ConnectFailed():
            return errors.ConnectionLost(f"{_sentence(failure)}. So a node could not be reached.")
        case NoWorkers():
            return errors.CapacityError(
                f"{_sentence(failure)}. So none of several nodes in a row could start a worker: look for the cause in "
                "their image and plugins, and in the memory and disk that they have."
            )
        case _:
            return failure


def provider_error(error: provider.ProviderError) -> errors.OutriderError:
    said, advice = _sentence(error), error.advice
    match error:
        case provider.NotAuthorized():
            return errors.AuthError(f"{said}. {advice or 'The provider does not let you in: check its credentials.'}")
        case provider.QuotaExceeded():
            limit = "This is your account's limit: ask for more quota, or for fewer nodes."
            return errors.QuotaError(f"{said}. {advice or limit}")
        case provider.BadRequest():
            return errors.SpecError(f"{said}. {advice or 'The provider can never give what was asked for.'}")
        case provider.JournalError():
            return errors.OutriderError(f"{said}. Nothing was created.")
        case provider.NoCapacity():
            nothing = "The provider has no machines to give: try again, or elsewhere."
            return errors.CapacityError(f"{said}. {advice or nothing}")
        case _:
            failed = errors.CapacityError(f"{said}. {advice or 'The provider failed: try again, or elsewhere.'}")
            failed.__cause__ = None if error.__cause__ is None else plainly(error.__cause__)
            return failed


def pool_error(error: BaseException, block_end: BlockEnd) -> BaseException:
    """Return the error that ended a pool, in users' terms. One that users know already is returned as it is."""
    failure = _only(error)
    match failure:
        case provider.NotGone():
            return cleanup_error(failure, block_end)
        case ActorFailed():
            story = f"{type(failure.__cause__).__name__}: {failure.__cause__}"
            closed = errors.PoolClosed(f"The pool ended by a defect of Outrider's own ({story}).")
            closed.__cause__ = plainly(error)
            return closed
        case provider.ProviderError() | ConnectFailed() | NoWorkers():
            found = provider_error(failure) if isinstance(failure, provider.ProviderError) else no_node_error(failure)
            for note in getattr(failure, "__notes__", ()):  # what kept other nodes
                found.add_note(note)
            return found
        case _:
            return failure


def not_ready_error(failed: Exception | None, ready: int, least: int, within_s: float) -> errors.OutriderError:
    """Return the error for a pool with too few ready nodes. ``failed``: what kept the last node from being ready."""
    counts = f"{ready} of the {least} nodes that the pool needs were ready within {within_s:g} s"
    if failed is None:
        story = f"{counts}, and none has failed: give them longer, by boot_timeout."
        return errors.CapacityError(story, wanted=least, got=ready)
    reason = pool_error(failed, "unstarted")
    if not isinstance(reason, errors.OutriderError):
        reason = errors.CapacityError(str(failed), wanted=least, got=ready)
    reason.add_note(f"Only {counts}.")
    return reason


def _only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def cleanup_error(trouble: provider.NotGone, block_end: BlockEnd) -> errors.CleanupError:
    which = ", ".join(trouble.machines) or "machines of which nobody was told"
    ends = "" if trouble.by is None else f" They end themselves {by_lease(trouble.by)}."
    others = f" Left at no cost: {', '.join(trouble.left)}." if trouble.left else ""
    error = errors.CleanupError(
        f"{UNCONFIRMED[block_end]} ({_sentence(trouble.why)}): {which} may still be running.{ends}{others} "
        "`outrider gc` shows what is left, and `outrider gc --apply` ends it.",
        machines=trouble.machines,
        left=trouble.left,
        by=trouble.by,
    )
    cause = trouble.__cause__
    error.__cause__ = provider_error(cause) if isinstance(cause, provider.NotAuthorized) else cause
    return error


def by_lease(by: float) -> str:
    """Return, for people, the time by which machines end themselves; ``by``: the unix time."""
    return f"by {time.strftime('%H:%M', time.localtime(by + 59))} at the latest, by their lease"


def pickling_error(error: Exception, task: str, what: str) -> errors.SerializationError | errors.NotACall:
    path, kind, reason = _unpicklable(error)
    thing = f"{path or what}{f' of {task}' if task else ''}"
    if isinstance(pending := error.__cause__ or error, errors.NotACall):
        return errors.NotACall(f"{thing}: {pending}")
    advice = PICKLING_ADVICE.get(kind, "leave it out, or make it inside the function")
    message = f"{thing} cannot be pickled ({reason}): {advice}."
    return errors.SerializationError(message, path=path, task=task, kind=kind)


def unloadable_error(error: Exception, what: str, task: str) -> errors.SerializationError:
    said = f"{type(error).__name__}: {_sentence(plainly(error))}"
    message = f"{what} cannot be unpickled here ({said}): its classes must be importable on both sides."
    return errors.SerializationError(message, task=task, kind=type(error).__name__)


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
        except Exception as broken:  # noqa: BLE001  whatever a user's exception class does on the way in
            versions = _versions(failed)
            known = "".join(
                f"; {what} is {here} here" + (f" and {there} there" if there else "") for what, here, there in versions
            )
            message += f" (which cannot be unpickled here: {type(broken).__name__}: {_sentence(broken)}{known})"
        else:
            if isinstance(error, ModuleNotFoundError) and (how := _how_to_import(failed)):
                error.add_note(how)
            # SystemExit would end this process, CancelledError this task, StopIteration means something else in a
            # coroutine.
            if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
                return error
    return errors.TaskFailed(message, kind=failed.kind, traceback=failed.traceback, versions=versions, **asdict(place))


def _pickling_error(
    failed: Failed, place: AttemptPlace, load: Callable[[], object] | None
) -> errors.SerializationError:
    if failed.phase == "load":
        message = (
            f"{place.task} or its arguments could not be unpickled on node {place.node} "
            f"({failed.kind}: {_sentence(failed.message)}): "
            f"{_how_to_import(failed) or 'what they need must be importable there.'}"
        )
        return errors.SerializationError(message, task=place.task, kind=failed.kind)
    found: object = None
    if load is not None:
        with suppress(Exception):
            found = load()
    path, kind, reason = _unpicklable(found or failed)
    what = f"The result of {place}, at {path}," if path else f"The result of {place}"
    return errors.SerializationError(
        f"{what} cannot be pickled ({reason}): return something else.", path=path, task=place.task, kind=kind
    )


def _how_to_import(failed: Failed) -> str:
    """Return advice that lets the node import what it did not find; empty: another error, or it is not here either."""
    found = re.fullmatch(r"No module named '([\w.]+)'", failed.message.partition(";")[0].strip())
    return import_advice(found[1]) if found is not None else ""


def _unpicklable(error: object) -> tuple[str, str, str]:
    """Return path, kind and reason of a `wire.values.Unpicklable`, of another exception, or of a `Failed`."""
    path = str(getattr(error, "path", ""))
    kind = str(getattr(error, "kind", type(error).__name__))
    said = getattr(error, "reason", None) or getattr(error, "message", None) or error
    return path, kind, _sentence(said) if kind in str(said) else f"{kind}: {_sentence(said)}"


def _sentence(said: object) -> str:
    return str(said).strip().rstrip(".") or type(said).__name__


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


def _versions(failed: Failed) -> tuple[tuple[str, str, str], ...]:
    """Return the package that the exception's type belongs to, with its version here and there."""
    package = failed.kind.partition(".")[0] if "." in failed.kind else "builtins"
    if package in sys.stdlib_module_names or package == "__main__":
        return (("Python", platform.python_version(), failed.version),)
    here = getattr(sys.modules.get(package), "__version__", None) or _distribution_version(package)
    return ((package, here, failed.version),)


def _distribution_version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    try:
        return version(packages_distributions().get(package, [package])[0])
    except (PackageNotFoundError, ValueError):  # a name that a node has made up is none
        return "not installed" if package not in sys.modules else "without a version"
