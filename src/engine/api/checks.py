"""Validation of values from users. Each function raises a `SpecError` that names the problem and a fix."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from math import inf, isfinite
from typing import Any, NoReturn, TypeVar

from ...providers.shared.option_names import checking_options, closest, not_an_option
from ...providers.shared.option_names import shown as shown  # noqa: PLC0414 - exported
from .errors import SpecError

T = TypeVar("T")
# about the longest time that a timedelta can hold; the protocol between client and node accepts slightly more
_LONGEST_S = 86_400_000_000_000.0


def check_known(owner: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `SpecError` if a name is not in ``known``. ``owner`` is the class or function that has these options."""
    for name in names:
        if name not in known:
            refuse(not_an_option(owner, name, known))


def checks_options(kind: type[T]) -> type[T]:
    """Make the constructor of a dataclass raise `SpecError`, as `check_known` does, for unknown options."""
    # values=False: the classes themselves check the values of their options, with better messages
    return checking_options(kind, SpecError, values=False)


def seconds(name: str, value: object) -> float:
    """Convert a positive duration, given in seconds or as a timedelta, to seconds."""
    datetime: Any = sys.modules.get("datetime")  # None: `datetime` was not imported, so the value is no timedelta
    if datetime is not None and isinstance(value, datetime.timedelta):
        value = datetime.timedelta.total_seconds(value)
    return min(amount(name, value, "seconds", takes="seconds or a timedelta"), _LONGEST_S)


def amount(name: str, value: object, unit: str, *, takes: str = "") -> float:
    """Check that ``value`` is a finite number greater than 0, and return it as a float.

    ``unit`` is for error messages.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(f"{name} takes {takes or f'{unit}, as a number'}, not {shown(value)}.")
    if not value > 0:  # not `value <= 0`, which would accept nan
        refuse(f"{name} must be more than 0 {unit}, not {shown(value)}; leave it out for no limit.")
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = inf
    if not isfinite(number):
        refuse(f"{name} must be more than 0 {unit} and finite, not {shown(value)}; leave it out for no limit.")
    return number


def in_parts(value: float, parts: float) -> int:
    """Convert a checked amount to a whole number of smaller units, such as GB to bytes, and limit it to 2**62."""
    return round(min(value * parts, 2.0**62))


def count(name: str, value: object, *, least: int = 1, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(f"{name} takes a whole number, not {shown(value)}.")
    if value < least:
        refuse(f"{name} must be at least {least}, not {shown(value)}.")
    if most is not None and value > most:
        refuse(f"{name} must be at most {most:,}, not {shown(value)}.")


def check_limit(limit: object) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        refuse(f"limit must be at least 1, not {shown(limit)}; leave it out for as many as are useful.")


def one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        close = closest(value.lower(), choices) if isinstance(value, str) else ""
        meant = f" Did you mean {close!r}?" if close else ""
        refuse(f"{name} takes {' or '.join(map(repr, choices))}, not {shown(value)}.{meant}")


def refuse(message: str) -> NoReturn:
    raise SpecError(message)
