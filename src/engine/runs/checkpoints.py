"""The checkpoints that tasks saved, read from the events in a run's record. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from ...lazy_named_tuple import NamedTuple
from .lines import whole_lines

SAVED = "checkpoint_saved"  # name of the event that a checkpoint is complete on all ranks
# The lines of such events contain this text. The many lines without it are not parsed.
_MARK = f'"{SAVED}"'.encode()


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint. ``rank``: the rank that reported it; None outside of broadcasts."""

    at: float  # unix time
    name: str
    step: int
    size_bytes: int  # size of the checkpoint in the storage
    job: int
    node: int
    rank: int | None = None


def saved_checkpoints(content: bytes) -> Iterator[SavedCheckpoint]:
    """Yield the checkpoints that the lines of `events.jsonl` report. Damaged lines are skipped."""
    for line in whole_lines(content):
        if _MARK in line and (saved := _saved(line)) is not None:
            yield saved


def _saved(line: bytes) -> SavedCheckpoint | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        if fields.get("event") != SAVED:
            return None
        at, name, rank = fields["at"], fields["name"], fields.get("rank")
        step, size_bytes, job, node = (fields[each] for each in ("step", "size_bytes", "job", "node"))
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
    whole = all(type(each) is int for each in (step, size_bytes, job, node, 0 if rank is None else rank))
    if not whole or not isinstance(name, str) or type(at) not in {int, float} or not math.isfinite(at):
        return None
    return SavedCheckpoint(float(at), name, step, size_bytes, job, node, rank)
