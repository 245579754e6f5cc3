"""Conversion of users' options to the amounts of a node (processors, memory, accelerators) that a function needs."""

from __future__ import annotations

from ...actors.amounts import GB, NOTHING, Amounts
from . import checks


def amounts(before: Amounts | None, option: str, value: object) -> Amounts | None:
    """Return the amounts ``before`` with one option set to ``value``, or without this option if ``value`` is None.

    The result is None if no amount is left.

    Raises:
        SpecError: The value is not valid.
    """
    needs = NOTHING if before is None else before
    match option:
        case "cpus":
            needs = needs._replace(millicpus=0 if value is None else _at_least_one(option, value, "processors", 1000))
        case "memory_gb":
            needs = needs._replace(memory_bytes=0 if value is None else _at_least_one(option, value, "GB", GB))
        case _:
            if value is not None:
                checks.count(option, value)
            needs = needs._replace(gpus=value if isinstance(value, int) else 0)
    return needs if any(needs) else None


def _at_least_one(option: str, value: object, unit: str, parts: float) -> int:
    """Convert a value in ``unit`` to an integer number of smaller units, at least 1.

    One ``unit`` has ``parts`` of them.
    """
    return max(1, checks.in_parts(checks.amount(option, value, unit), parts))
