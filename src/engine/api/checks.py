"""Check values that users give. Each function raises `SpecError`: what is wrong, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import wraps
from math import isfinite
from typing import Any, NoReturn, TypeVar

from .errors import SpecError

FOREIGN = {  # options of similar libraries, and ours
    "gpus": "accelerator",
    "gpu": "accelerator",
    "cpus": "vcpus",
    "memory": "memory_gb",
    "num_nodes": "nodes",
    "executor": "kind",
    "bucket": "url",
    "packages": "pip",
    "ttl": "lease",
    "spot": "allocation",
}
ALIKE = 0.75  # of a name and a misspelling of it, by difflib's measure: A40 is no A10, and counter no compute
T = TypeVar("T")
_LONGEST_S = timedelta.max.total_seconds()  # the protocol takes a little more


def check_known(owner: str, given: Iterable[str], declared: type) -> None:
    """Refuse options that the typed dict ``declared`` does not have. ``owner``: the class or function called."""
    known = tuple(declared.__annotations__)
    for name in given:
        if name not in known:
            close = FOREIGN[name] if FOREIGN.get(name) in known else closest(name, known)
            hint = f"did you mean {close!r}?" if close else f"it has {', '.join(sorted(known)) or 'none'}."
            refuse(f"{owner} has no option {name!r}: {hint}")


def checks_options(kind: type[T]) -> type[T]:
    """Have a dataclass refuse options that it does not have as `SpecError`, in the words of `check_known`."""
    make = kind.__init__

    @wraps(make)
    def init(self: T, *args: Any, **options: Any) -> None:
        check_known(kind.__name__, options, kind)
        make(self, *args, **options)

    kind.__init__ = init  # type: ignore[assignment]
    return kind


def seconds(name: str, value: object) -> float:
    """Return the seconds of a duration as users may write it: seconds, or a timedelta; more than nothing."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return min(amount(name, value, "seconds", takes="seconds or a timedelta"), _LONGEST_S)


def amount(name: str, value: object, unit: str, *, takes: str = "") -> float:
    """Return a number of ``unit`` that is more than 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(f"{name} takes {takes or f'{unit}, as a number'}, not {shown(value)}.")
    if not isfinite(value) or value <= 0:
        refuse(f"{name} must be more than 0 {unit}, not {value}; leave it out for no limit.")
    return float(value)


def count(name: str, value: object, *, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(f"{name} takes a whole number, not {shown(value)}.")
    if value < least:
        refuse(f"{name} must be at least {least}, not {value}.")


def one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        close = closest(value, choices) if isinstance(value, str) else ""
        meant = f" Did you mean {close!r}?" if close else ""
        refuse(f"{name} takes {' or '.join(map(repr, choices))}, not {shown(value)}.{meant}")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse(message: str) -> NoReturn:
    raise SpecError(message)


def closest(name: str, known: Iterable[str]) -> str:
    """Return which of the known names was probably meant; empty: none is like it."""
    from difflib import get_close_matches

    return "".join(get_close_matches(name, known, n=1, cutoff=ALIKE))
