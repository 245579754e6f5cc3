"""Validation of values from users. Each function raises a `SpecError` that names the problem and a fix."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from math import inf, isfinite
from typing import Any, NoReturn, TypeVar

from ...providers.option_names import checking_options, closest, not_an_option
from ...providers.option_names import shown as shown  # noqa: PLC0414 - exported
from .errors import SpecError

T = TypeVar("T")
_LONGEST_S = 86_400_000_000_000.0  # the longest timedelta; the protocol accepts slightly more


def check_known(owner: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse options that are not in ``known``. ``owner``: the name of the called class or function."""
    for name in names:
        if name not in known:
            refuse(not_an_option(owner, name, known))


def checks_options(kind: type[T]) -> type[T]:
    """Make a dataclass raise `SpecError` for unknown options, with the message of `check_known`."""
    # values are not checked here, because these classes check their values with better messages
    return checking_options(kind, SpecError, values=False)


def seconds(name: str, value: object) -> float:
    """Convert a positive duration, given in seconds or as a timedelta, to seconds."""
    datetime: Any = sys.modules.get("datetime")  # a program that has a timedelta has imported `datetime`
    if datetime is not None and isinstance(value, datetime.timedelta):
        value = datetime.timedelta.total_seconds(value)
    return min(amount(name, value, "seconds", takes="seconds or a timedelta"), _LONGEST_S)


def amount(name: str, value: object, unit: str, *, takes: str = "") -> float:
    """Return a number of ``unit``, which must be greater than 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(f"{name} takes {takes or f'{unit}, as a number'}, not {shown(value)}.")
    if not value > 0:  # written so that it also refuses nan
        refuse(f"{name} must be more than 0 {unit}, not {shown(value)}; leave it out for no limit.")
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        number = inf
    if not isfinite(number):
        refuse(f"{name} must be more than 0 {unit} and finite, not {shown(value)}; leave it out for no limit.")
    return number


def in_parts(value: float, parts: float) -> int:
    """Convert a checked amount to an integer number of its unit's parts (such as GB to bytes), at most 2**62."""
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
