"""Conversion of lines of `events.jsonl` to events."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from ...actors import events as ev
from .lines import parsed_events


def events_in(content: bytes) -> Iterator[ev.Event]:
    """Yield the events of all complete lines.

    Damaged lines, and events that this version does not know, are skipped.
    """
    for line_fields in parsed_events(content):
        event = event_in(line_fields)
        if event is not None:
            yield event


def event_in(fields: Mapping[str, Any]) -> ev.Event | None:
    """Return the event of a line; None: this version does not know the event, or its fields have wrong types."""
    kind = _kinds().get(str(fields.get("event")))
    if kind is None:
        return None
    try:
        return kind(**{name: _value(fields[name], hint) for name, hint in _hints(kind.name).items() if name in fields})
    except (TypeError, ValueError):
        return None


@cache
def _kinds() -> dict[str, type[ev.Event]]:
    kinds: dict[str, type[ev.Event]] = {}
    waiting: list[type[ev.Event]] = [ev.Event]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            kinds[kind.name] = kind
            waiting.append(kind)
    return kinds


@cache
def _hints(name: str) -> dict[str, Any]:
    kind = _kinds()[name]
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _value(value: Any, hint: Any) -> Any:
    """Convert a JSON value to the type ``hint``.

    Raises:
        TypeError, ValueError: The value has another type.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(value, next(each for each in get_args(hint) if each is not type(None)))
    if origin is tuple and isinstance(value, list):
        inner = get_args(hint)
        hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(_value(each, part) for each, part in zip(value, hints, strict=True))
    if hint is float and not isinstance(value, bool) and isinstance(value, int | float | str):
        return float(value)  # numbers that JSON lacks (nan, infinities) are written as strings
    wanted = {int: int, str: str, bool: bool}.get(hint, Mapping if origin is not None else None)
    if wanted is None or not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is no {hint}")
    return value
