"""Notes that are added to users' exceptions, and errors with advice for values that cannot be pickled.

The notes of an exception are its place, its remote traceback, and other ranks with an equal error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ...lazy_dataclass import dataclass
from ..api import errors
from ..api.printable import plain, plainly, sentence
from ..api.tracebacks import causes, of_pickling, remote_traceback, with_source_lines
from ..node.failure import shortened, text_of
from ..wire.importable import import_advice
from ..wire.messages import Failed
from ..wire.values import Unpicklable

E = TypeVar("E", bound=Exception)
NOTE_CHARACTERS = 64 * 1024  # maximum length of each note that the user's exception brings along


@dataclass(frozen=True, slots=True)
class AttemptPlace:
    task: str
    node: int
    rank: int = 0
    attempt: int = 1

    def __str__(self) -> str:
        return f"{self.task} on node {self.node} (rank {self.rank}, attempt {self.attempt})"


def located(error: E, place: AttemptPlace, text: str) -> E:
    """Add notes to an error about the place where it was raised.

    The attributes are set without the class's ``__setattr__``, because the class may be frozen. The last exception in
    the chain of causes gets a `RemoteTraceback` as its cause.
    """
    text = with_source_lines(plain(text.rstrip()))
    note = f"{plain(str(place))}, traceback there:\n{text}" if text else plain(str(place))
    facts = {
        "node": place.node,
        "rank": place.rank,
        "attempt": place.attempt,
        "__notes__": [*_notes(error), note],
    }
    for name, value in facts.items():
        _set_fact(error, name, value)
    chain: list[BaseException] = [error]
    for cause in causes(error)[1:]:
        # a RemoteTraceback in the chain is of an inner pool, which the task itself used
        if not isinstance(cause, errors.RemoteTraceback):
            _set_fact(cause, "__notes__", _notes(cause))
            chain.append(cause)
    # This text is short: the note already contains the traceback's frames, and Python prints notes last, where users
    # look first.
    _set_fact(chain[-1], "__cause__", errors.RemoteTraceback(f"raised in {place}", text))
    return error


def _set_fact(error: BaseException | None, name: str, value: object) -> None:
    with suppress(Exception):  # the class may have a property with this name, which may raise
        if error is not None:
            BaseException.__setattr__(error, name, value)


def _notes(error: BaseException | None) -> list[str]:
    notes: object = ()
    with suppress(Exception):  # the class may have a property with this name, which may raise
        notes = getattr(error, "__notes__", ())
    if not isinstance(notes, list | tuple):
        return []
    return [plain(shortened(str(note), NOTE_CHARACTERS)) for note in notes]


def tell_equal_ones_once(failed: Sequence[errors.Outcome]) -> None:
    """Keep the remote traceback of only one of several ranks with equal errors. The others' notes name that rank.

    Errors are equal if their tracebacks and texts differ only in numbers, such as a lost peer's port. Line numbers must
    be equal.
    """
    alike: dict[object, list[errors.Outcome]] = {}
    for outcome in failed:
        error = outcome.error
        if error is not None and (trace := remote_traceback(error)) is not None:
            alike.setdefault((type(error), _but_numbers(text_of(error)), _but_numbers(trace.text)), []).append(outcome)
    for first, *others in alike.values():
        if others:
            _set_fact(first.error, "__notes__", [*_notes(first.error), f"The same on {ranks_of(others)}."])
        for other in others:
            note = f"On rank {other.rank}. Rank {first.rank} has the traceback of the same."
            _set_fact(other.error, "__notes__", [note])
            if other.error is not None:
                _set_fact(causes(other.error)[-2], "__cause__", None)


def _but_numbers(text: str) -> str:
    """Return the text with all numbers replaced by 0, except in lines that name a file and line of a traceback."""
    return "\n".join(line if line.startswith('  File "') else re.sub(r"\d+", "0", line) for line in text.split("\n"))


def ranks_of(outcomes: Sequence[errors.Outcome]) -> str:
    """Return the ranks of the outcomes as text, such as "ranks 0, 4-63"."""
    spans: list[list[int]] = []
    for rank in sorted(outcome.rank for outcome in outcomes):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    numbers = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank {numbers}" if len(outcomes) == 1 else f"ranks {numbers}"


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
