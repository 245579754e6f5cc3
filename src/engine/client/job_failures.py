"""Conversion of a job's failures to events. Ranks that failed in the same way share an event."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import assert_never, cast

from ...actors import events as ev
from ...actors.amounts import GB
from ...actors.interfaces import Ending, GaveUp, Settled, Verdict
from ..api.printable import one_line
from ..wire.messages import Cause, Ended, Failed

LINE_CHARS = 200


def failures(job: int, function: str, ending: Ending | Sequence[Ending]) -> list[ev.JobFailed]:
    """Return the failures that the job's own function caused, as events.

    Lost nodes, and tasks that were ended because others failed, are not included. ``ending``: for a broadcast, the
    endings of all ranks.
    """
    if isinstance(ending, Settled | GaveUp):
        error = _error(ending)
        return [ev.JobFailed(job, function, error, ending.node)] if error and isinstance(ending, Settled) else []
    alike: dict[str, list[Settled]] = {}
    for each in ending:
        if isinstance(each, Settled) and (error := _error(each)):
            alike.setdefault(error, []).append(each)
    return [
        ev.JobFailed(job, function, error, ranks[0].node, tuple(each.rank for each in ranks))
        for error, ranks in alike.items()
    ]


def item_failure(job: int, function: str, item: int, failed: Failed, node: int) -> ev.JobFailed:
    """Return the event for the failure of one item of a map.

    It is used if the item's task also returned results of other items.
    """
    return ev.JobFailed(job, f"item {item} of {function}", _raised(failed), node)


def _error(ending: Ending) -> str:
    if not isinstance(ending, Settled):
        return ""
    match ending.verdict:
        case Verdict.RETURNED | Verdict.KILLED | Verdict.UNSENT:
            return ""
        case Verdict.RAISED:
            failed, _ = cast("tuple[Failed, object]", ending.outcome)
            return _raised(failed)
        case Verdict.DIED | Verdict.TERMINATED | Verdict.TIMED_OUT:
            return _death(cast("Ended", ending.outcome))
        case _:
            assert_never(ending.verdict)


def _raised(failed: Failed) -> str:
    kind = failed.kind.rpartition(".")[2] if failed.kind.startswith("outrider.") else failed.kind
    text = one_line(f"{kind}: {failed.message}" if failed.message else kind)
    return text if len(text) <= LINE_CHARS else f"{text[:LINE_CHARS]}..."


def _death(ended: Ended) -> str:  # noqa: PLR0911  (a table)
    match ended.cause:
        case Cause.TIMEOUT:
            return "it ran longer than its timeout"
        case Cause.MEMORY:
            return "it ran out of memory"
        case Cause.LIMIT:
            return f"it used {ended.code / GB:.3g} GB, more than its memory_gb"
        case Cause.EXIT:
            return f"its process ended with exit status {ended.code}"
        case Cause.SIGNAL if ended.code in set(signal.Signals):
            return f"it was killed by {signal.Signals(ended.code).name}"
        case Cause.SIGNAL:
            return f"it was killed by signal {ended.code}"
        case Cause.KILLED | Cause.UNKNOWN:
            return ""
        case _:
            assert_never(ended.cause)
