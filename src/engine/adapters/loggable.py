"""Logging of a framework's values: numbers as metrics, and settings as params.

Values that the record does not accept are skipped, so that they never end a training.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Literal, get_args

from ..api import checks
from ..observe.log_calls import log_metrics, log_params
from ..observe.log_values import checked_metrics
from ..runtime.instance_info import instance_info
from ..wire.log_records import NAME_CHARS, NAMES

Ranks = Literal["all", "head"]


def checked_ranks(adapter: str, ranks: Ranks) -> Ranks:
    """Check and return ``ranks``, the ranks whose values are logged.

    ``adapter``: the adapter's name, for errors.

    Raises:
        SpecError: ``ranks`` is neither "all" nor "head" (only rank 0).
    """
    checks.one_of(f"integrations.{adapter}: ranks", ranks, get_args(Ranks))
    return ranks


def is_logging(ranks: Ranks) -> bool:
    """Return whether this rank logs its values. ``ranks``: "all", or "head" (only rank 0)."""
    return ranks == "all" or instance_info().is_head


def log_numbers(values: Mapping[str, Any], step: int | None) -> None:
    """Log all values that are single numbers, however many there are. Skip other values."""
    numbers = iter([(name, value) for name, value in _named(values).items() if _is_number(value)])
    while some := dict(islice(numbers, NAMES)):
        log_metrics(some, step=step)


def log_settings(settings: Mapping[str, Any]) -> None:
    """Log settings as params. Skip settings that are too large for the record."""
    named = _named(settings)
    try:
        log_params(named)
    except ValueError:
        for name, value in named.items():
            with suppress(ValueError):
                log_params({name: value})


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name)[:NAME_CHARS]: value for name, value in values.items() if str(name)}


def _is_number(value: Any) -> bool:
    try:
        checked_metrics({"value": value})
    except TypeError:
        return False
    return True
