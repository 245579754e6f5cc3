"""Checks of logged numbers, names, steps and params. The errors name the invalid value. No I/O."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex

from ..wire.log_records import NAME_CHARS, NAMES, TEXT_CHARS

_MOST_KNOWN = 10_000
_known: set[str] = set()  # names that have already passed the check


def checked_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values as floats.

    Raises:
        TypeError: a value is not a single number, or a name is not a text.
        ValueError: there are too many values, or a name is empty or too long.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"log_metrics takes a mapping of names to numbers, not {_kind(values)}")
    if len(values) > NAMES:
        raise ValueError(f"log_metrics takes at most {NAMES} values at a time, not {len(values)}")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if name not in _known:
            _know(name)
        numbers[name] = value if type(value) is float else _number(name, value)
    return numbers


def checked_step(step: SupportsIndex | None) -> int | None:
    """Return the step as an integer.

    Raises:
        TypeError: the step is not an integer.
        ValueError: the step is out of range.
    """
    if step is None or type(step) is int:
        number = step
    else:
        try:
            number = operator.index(step)
        except TypeError:
            raise TypeError(f"step is an integer or None, not {_kind(step)}") from None
    if number is not None and not -(2**63) <= number < 2**63:
        raise ValueError(f"step must fit into 64 bits: {number}")
    return number


def checked_name(name: str) -> str:
    """Return the name if it is valid.

    Raises:
        TypeError, ValueError: the name is not valid.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name is a text, not {_kind(name)}")
    if not 0 < len(name) <= NAME_CHARS:
        raise ValueError(f"a name has 1 to {NAME_CHARS} characters, and {name[:40]!r} has {len(name)}")
    return name


def checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"log_text takes a text, not {_kind(text)}")
    if len(text) > TEXT_CHARS:
        raise ValueError(
            f"log_text takes at most {TEXT_CHARS} characters, not {len(text)}: write it to a file, and "
            "give that to log_artifact"
        )
    return text


def checked_params(params: Mapping[str, Any]) -> str:
    """Return the params as the text of a JSON object. Values that JSON cannot represent become texts.

    Raises:
        TypeError, ValueError: the params are not a mapping, have a name that is not a text, or are too large.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"log_params takes a mapping of names to values, not {_kind(params)}")
    encoded = json.dumps({checked_name(name): _plain(value) for name, value in params.items()}, ensure_ascii=False)
    if len(encoded) > TEXT_CHARS:
        raise ValueError(
            f"log_params takes at most {TEXT_CHARS} characters of JSON at a time, and these are {len(encoded)}: write "
            "them to a file, and give that to log_artifact"
        )
    return encoded


def _plain(value: Any, depth: int = 8) -> Any:
    """Convert a param to a JSON value. Values that JSON cannot represent, such as nan and infinities, become texts."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else str(float(value))
    if depth and isinstance(value, Mapping):
        return {str(name): _plain(each, depth - 1) for name, each in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth - 1) for each in value]
    return str(value)


def _know(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"log_metrics takes texts as names, not {_kind(name)}")
    checked_name(name)
    if len(_known) < _MOST_KNOWN:
        _known.add(name)


def _number(name: str, value: Any) -> float:
    """Convert a single number to a float.

    Accepts numbers of Python, numpy, torch, jax, and types with ``__float__``.
    """
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"log_metrics: {name!r} is a text, {value[:40]!r}: log_text takes texts, log_params settings")
    # arrays and tensors with a single element have this method, whatever their number of dimensions
    item = getattr(value, "item", None)
    try:
        single: SupportsFloat = item() if item is not None else value
        return float(single)
    except OverflowError:
        raise TypeError(f"log_metrics: {name!r} is an integer beyond what a float holds") from None
    except Exception as error:
        shape = getattr(value, "shape", None)
        of = f" of shape {tuple(shape)}" if shape is not None else ""
        raise TypeError(f"log_metrics: {name!r} is no single number, but {_kind(value)}{of}") from error


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
