"""The ranges of the protocol's numbers and texts."""

from __future__ import annotations

from typing import Annotated

from ...lazy_named_tuple import NamedTuple

LONGEST_S = 1e14  # three million years, a little more than the longest `timedelta`


class Range(NamedTuple):
    """The bounds of a number, or of a text's length in characters, both included. `codec.decode` checks them."""

    least: float
    most: float


# Every number of the protocol is one of these, in either direction.
Number = Annotated[int, Range(0, 2**63 - 1)]  # of attempts, jobs, frames, items, microseconds
Size = Annotated[int, Range(0, 2**47)]  # in bytes; no process of any machine has room for more
Port = Annotated[int, Range(1, 65535)]
Stream = Annotated[int, Range(-1, 2**31 - 1)]
Seconds = Annotated[float, Range(0, LONGEST_S)]  # neither infinite nor not a number
Share = Annotated[float, Range(0, 1)]  # of a whole
Quantity = Annotated[float, Range(0, 1e6)]  # of processors, or watts
Name = Annotated[str, Range(0, 256)]  # a name that is passed on to other nodes
Text = Annotated[str, Range(0, 65536)]  # for people
