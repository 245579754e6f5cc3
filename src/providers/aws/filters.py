"""Filters of EC2's describe calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

VALUES: Final = 200  # that a filter takes: "DescribeInstances", EC2 API Reference


def where(name: str, *values: str) -> dict[str, Any]:
    """A filter for what has one of these values."""
    return {"Name": name, "Values": list(values)}


def batches(values: Sequence[str]) -> list[Sequence[str]]:
    """The values in lots that a filter takes."""
    return [values[start : start + VALUES] for start in range(0, len(values), VALUES)]
