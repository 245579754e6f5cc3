"""Errors, with advice, about objects that cannot be pickled or unpickled in this process or on a node."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

from ..api import errors
from ..api.printable import plainly, sentence
from ..api.tracebacks import of_pickling
from ..wire.importable import import_advice
from ..wire.messages import Failed
from ..wire.values import Unpicklable
from .error_notes import AttemptPlace

PICKLING_ADVICE = {  # type name of the object that cannot be pickled -> advice
    "coroutine": "await it first, and give its result",
    "generator": "annotate its parameter as Iterator[...], and its values are streamed",
    "async_generator": "annotate its parameter as AsyncIterator[...], and its values are streamed",
}


def pickling_error(error: Exception, task: str, what: str) -> errors.SerializationError | errors.NotACall:
    path, kind, reason = _unpicklable(error)
    thing = f"{path or what}{f' of {task}' if task and path != task and not path.startswith(f'{task} (') else ''}"
    if isinstance(pending := error.__cause__ or error, errors.NotACall):
        return errors.NotACall(f"{thing}: {pending}")
    if isinstance(pending, errors.SerializationError):
        return errors.SerializationError(f"{thing}: {pending}", path=path, task=task, kind=pending.kind)
    advice = PICKLING_ADVICE.get(kind, "leave it out, or make it inside the function")
    message = f"{thing} cannot be pickled ({reason}): {advice}."
    return errors.SerializationError(message, path=path, task=task, kind=kind)


def cause_of(error: Exception) -> BaseException:
    """Return the exception that pickling originally raised, as the cause of a `pickling_error`."""
    return of_pickling(error.__cause__ if isinstance(error, Unpicklable) and error.__cause__ else error)


def unloadable_error(error: BaseException, what: str, task: str) -> errors.SerializationError:
    if isinstance(error, SystemExit):  # must not be raised here: it would end this process, perhaps with exit status 0
        message = f"{what} calls exit() as it is unpickled, so it was not: return something else."
        return errors.SerializationError(message, task=task, kind="SystemExit")
    text = f"{type(error).__name__}: {sentence(plainly(error))}"
    message = f"{what} cannot be unpickled here ({text}): its classes must be importable on both sides."
    return errors.SerializationError(message, task=task, kind=type(error).__name__)


def task_pickling_error(
    failed: Failed, place: AttemptPlace, load: Callable[[], object] | None
) -> errors.SerializationError | errors.SpecError:
    # an error that `misuse.check_guard` raised on the node
    if failed.phase == "load" and failed.kind == f"{errors.SpecError.__module__}.SpecError":
        return errors.SpecError(f"{place.task} could not be loaded on node {place.node}: {failed.message}")
    if failed.phase == "load":
        message = (
            f"{place.task} or its arguments could not be unpickled on node {place.node} "
            f"({failed.kind}: {sentence(failed.message)}): "
            f"{how_to_import(failed) or 'what they need must be importable there.'}"
        )
        return errors.SerializationError(message, task=place.task, kind=failed.kind)
    unpicklable: object = None
    if load is not None:
        with suppress(Exception, SystemExit):
            unpicklable = load()
    path, kind, reason = _unpicklable(unpicklable or failed)
    what = f"The result of {place}, at {path}," if path else f"The result of {place}"
    return errors.SerializationError(
        f"{what} cannot be pickled ({reason}): return something else.", path=path, task=place.task, kind=kind
    )


def how_to_import(failed: Failed) -> str:
    """Return advice on how to make the missing module importable on nodes.

    Empty if the error is not about a missing module, or the module is a part of Python.
    """
    match = re.fullmatch(r"No module named '([\w.]+)'", failed.message.partition(";")[0].strip())
    return import_advice(match[1]) if match is not None else ""


def _unpicklable(error: object) -> tuple[str, str, str]:
    """Return path, kind and reason of a `wire.values.Unpicklable`, another exception, or a `Failed` message."""
    path = str(getattr(error, "path", ""))
    kind = str(getattr(error, "kind", type(error).__name__))
    text = getattr(error, "reason", None) or getattr(error, "message", None) or error
    return path, kind, sentence(text) if kind in str(text) else f"{kind}: {sentence(text)}"
