"""The values of kept results in a simulation: each names the job that has made it, and what that was given.

Whatever a job is given is in its arguments, by value or by the name of a reference; a played worker makes its result of
what it finds there. So a result that was made of something else is another one.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from ...serialization.payload import Received
from ...serialization.stored_objects import StoredObject


class Result(NamedTuple):
    """The bytes of a kept result, as they are pickled. Those of another making have another size."""

    value: str
    attempt: int  # that has made them
    padding: str

    def pickled(self) -> bytes:
        return pickle.dumps(tuple(self), 5)

    @classmethod
    def of(cls, data: bytes) -> Result:
        return cls(*pickle.loads(data))


class Given(NamedTuple):
    """The arguments of a job: which function it is, and what it is given."""

    job: int  # that was submitted first; one that is made again has a number of its own
    values: tuple[tuple[str, bool], ...]  # and whether each is the name of a reference

    def pickled(self) -> bytes:
        return pickle.dumps((self.job, self.values), 5)

    @classmethod
    def of(cls, data: bytes) -> Given:
        return cls(*pickle.loads(data))

    def found(self, lent: Mapping[str, str]) -> list[str]:
        """Return the values; ``lent``: those of references, by name."""
        return [lent.get(each, "") if by_name else each for each, by_name in self.values]


def made_of(job: int, values: Sequence[str]) -> str:
    """Return the value that a job makes of others."""
    return blake2b(f"{job}({','.join(values)})".encode(), digest_size=8).hexdigest()


def attempt_of(outcome: StoredObject | Received) -> int:
    """Return the attempt that has made a kept result."""
    if isinstance(outcome, StoredObject):
        return int(outcome.name.removeprefix("kept-"))
    return Result.of(bytes(outcome.data)).attempt
