"""The values of kept results in a simulation: each value depends on the job that computed it and on the job's inputs.

A job's arguments contain its inputs, by value or by the name of a reference; a simulated worker computes its result
from them. So a result from wrong inputs has a wrong value.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from ...serialization.payload import Received
from ...serialization.stored_objects import StoredObject


class Result(NamedTuple):
    """A kept result, as it is pickled. Results of different runs differ in size."""

    value: str
    attempt: int  # the attempt that computed it
    padding: str

    def pickled(self) -> bytes:
        return pickle.dumps(tuple(self), 5)

    @classmethod
    def of(cls, data: bytes) -> Result:
        return cls(*pickle.loads(data))


class Arguments(NamedTuple):
    """The arguments of a job: its own number, and its inputs."""

    job: int  # number of the first submission; a rerun has a number of its own
    values: tuple[tuple[str, bool], ...]  # (value, whether it is the name of a reference)

    def pickled(self) -> bytes:
        return pickle.dumps((self.job, self.values), 5)

    @classmethod
    def of(cls, data: bytes) -> Arguments:
        return cls(*pickle.loads(data))

    def resolved(self, lent: Mapping[str, str]) -> list[str]:
        """Return the values; ``lent``: the values of references, by name."""
        return [lent.get(each, "") if by_name else each for each, by_name in self.values]


def combined(job: int, values: Sequence[str]) -> str:
    """Return the value that a job computes from its inputs."""
    return blake2b(f"{job}({','.join(values)})".encode(), digest_size=8).hexdigest()


def attempt_of(outcome: StoredObject | Received) -> int:
    """Return the attempt that computed a kept result."""
    if isinstance(outcome, StoredObject):
        return int(outcome.name.removeprefix("kept-"))
    return Result.of(bytes(outcome.data)).attempt
