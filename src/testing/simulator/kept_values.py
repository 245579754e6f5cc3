"""The values of kept results in a simulation: each value is a hash of the job that computed it and of the job's inputs.

A job's arguments contain its inputs: the value of each input, or the name of a reference to it. A simulated worker
computes the job's result from its arguments. So a job with wrong inputs gets a wrong result, and the referee sees it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from ...engine.serialization.payload import Received
from ...engine.serialization.stored_objects import StoredObject


class Result(NamedTuple):
    """A kept result in the form in which it is pickled. Its padding lets results of different runs differ in size."""

    value: str
    attempt: int  # number of the attempt that computed the result
    padding: str

    def pickled(self) -> bytes:
        return pickle.dumps(tuple(self), 5)

    @classmethod
    def of(cls, data: bytes) -> Result:
        return cls(*pickle.loads(data))


class Arguments(NamedTuple):
    """The arguments of a simulated job: the job's number and its inputs."""

    job: int  # number of the job that the user submitted; a recomputation has a different number but the same arguments
    values: tuple[tuple[str, bool], ...]  # inputs: (a value, False) or (the name of a reference, True)

    def pickled(self) -> bytes:
        return pickle.dumps((self.job, self.values), 5)

    @classmethod
    def of(cls, data: bytes) -> Arguments:
        return cls(*pickle.loads(data))

    def resolved(self, lent: Mapping[str, str]) -> list[str]:
        """Return the values of all inputs. ``lent`` has the values of references, by name."""
        return [lent.get(each, "") if by_name else each for each, by_name in self.values]


def combined(job: int, values: Sequence[str]) -> str:
    """Return the value that a job computes from the values of its inputs."""
    return blake2b(f"{job}({','.join(values)})".encode(), digest_size=8).hexdigest()


def attempt_of(outcome: StoredObject | Received) -> int:
    """Return the number of the attempt that computed a kept result."""
    if isinstance(outcome, StoredObject):
        return int(outcome.name.removeprefix("kept-"))
    return Result.of(bytes(outcome.data)).attempt
