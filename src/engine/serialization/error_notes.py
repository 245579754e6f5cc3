"""Notes that are added to a user's exception: its place, its remote traceback, and other ranks with an equal error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from ...lazy_dataclass import dataclass
from ..api import errors
from ..api.printable import plain
from ..api.tracebacks import causes, remote_traceback, with_source_lines
from ..node.failure import shortened, text_of

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
