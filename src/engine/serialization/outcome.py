"""Turn how a task ended into what its caller gets: a value, unpickled when it is asked for, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from ...actors.ports import Ending, GaveUp, Settled, Verdict
from ..api.errors import CapacityError, NodeLost, Outcome
from ..api.printable import plainly
from ..wire import values
from ..wire.messages import Ended, Failed
from .error_translation import (
    AttemptPlace,
    broadcast_error,
    ended_error,
    failed_error,
    gave_up_error,
    unloadable_error,
    unloadable_value_error,
)
from .payload import Payload, Received


def unpack(ending: Ending, payload: Payload, queue_timeout_s: float | None = None) -> Any:
    """Return the task's value.

    Raises:
        Exception: the user's own, with where it happened; or an `OutriderError`.
    """
    if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
        return _load(cast("Received", ending.outcome), ending, payload)
    raise error_of(ending, payload, queue_timeout_s)


def error_of(ending: Ending, payload: Payload, queue_timeout_s: float | None = None) -> Exception:
    """Return the error of a task that did not return."""
    if isinstance(ending, GaveUp):
        return gave_up_error(ending, payload.name, queue_timeout_s=queue_timeout_s)
    place = _place(ending, payload)
    if ending.verdict is Verdict.RAISED:
        failed, received = cast("tuple[Failed, Received | None]", ending.outcome)
        load = None if received is None else partial(values.load, received.data, received.sizes)
        return failed_error(failed, place, load)
    return ended_error(cast("Ended", ending.outcome), place, payload.timeout_s)


def unpack_all(endings: Sequence[Ending], payload: Payload) -> list[Any]:
    """Return the values of a broadcast, by rank.

    Raises:
        BroadcastFailed: some ranks failed; each rank's outcome is on it.
        NodeLost, CapacityError: some ranks were lost, and not replaced; the same.
        OutriderError: the broadcast as a whole could not be run.
    """
    if all(isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED for ending in endings):
        return [unpack(ending, payload) for ending in endings]
    outcomes = [outcome(ending, payload, rank) for rank, ending in enumerate(endings)]
    errors = [each.error for each in outcomes if each.error is not None]
    if all(isinstance(ending, GaveUp) for ending in endings):
        raise errors[0]
    gave_up = (each.error for each, ending in zip(outcomes, endings, strict=True) if isinstance(ending, GaveUp))
    lost = next((error for error in gave_up if isinstance(error, NodeLost | CapacityError)), None)
    if lost is not None:
        lost.outcomes = tuple(outcomes)
        raise lost
    raise broadcast_error(payload.name, outcomes)


def load_value(received: Received, payload: Payload) -> Any:
    """Unpickle a value of a generator.

    Raises:
        SerializationError: it cannot be unpickled here.
    """
    try:
        return values.load(received.data, received.sizes)
    except Exception as error:
        plainly(error)
        raise unloadable_value_error(error, payload.name) from error


def outcome(ending: Ending, payload: Payload, rank: int) -> Outcome:
    if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
        return Outcome(rank, int(ending.node), None, partial(_load, cast("Received", ending.outcome), ending, payload))
    node = int(ending.node) if isinstance(ending, Settled) else None
    return Outcome(rank, node, error_of(ending, payload))


def _load(received: Received, ending: Settled, payload: Payload) -> Any:
    try:
        return values.load(received.data, received.sizes)
    except Exception as error:
        plainly(error)
        raise unloadable_error(error, _place(ending, payload)) from error


def _place(ending: Settled, payload: Payload) -> AttemptPlace:
    return AttemptPlace(payload.name, int(ending.node), ending.rank, ending.number)
