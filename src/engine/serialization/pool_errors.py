"""Translation of the ends of pools and the failures of providers into errors that users can catch."""

from __future__ import annotations

import time
from typing import Literal

from ...actors.interfaces import ConnectFailed, NoWorkers, QueuedTooLong
from ...actors.kernel import ActorFailed
from ...providers import errors as provider
from ..api import errors
from ..api.printable import plainly, sentence

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
