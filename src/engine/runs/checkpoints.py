"""The checkpoints that tasks have saved, as a record's events have them. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ...lazy_named_tuple import NamedTuple
from .lines import whole_lines

SAVED = "checkpoint_saved"  # the event: a checkpoint is complete, on all ranks
_MARK = f'"{SAVED}"'.encode()  # in its line; of the other lines, which are many, none is read


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint. ``rank``: of the broadcast that has completed it; None outside of broadcasts."""

    at: float  # unix time
    name: str
    step: int
    size_bytes: int  # that the storage has of it
    job: int
    node: int
    rank: int | None = None


def saved_checkpoints(content: bytes) -> Iterator[SavedCheckpoint]:
    """Return the checkpoints that these events tell of. What is damaged is left out."""
    for line in whole_lines(content):
        if _MARK in line and (saved := _saved(line)) is not None:
            yield saved


def _saved(line: bytes) -> SavedCheckpoint | None:
    try:
        said: dict[str, Any] = json.loads(line)
        if said.get("event") != SAVED:
            return None
        at, name, rank = said["at"], said["name"], said.get("rank")
        step, size_bytes, job, node = (said[each] for each in ("step", "size_bytes", "job", "node"))
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
    whole = all(type(each) is int for each in (step, size_bytes, job, node, 0 if rank is None else rank))
    if not whole or not isinstance(name, str) or type(at) not in {int, float} or not math.isfinite(at):
        return None
    return SavedCheckpoint(float(at), name, step, size_bytes, job, node, rank)
