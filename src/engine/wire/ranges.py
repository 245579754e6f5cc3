"""The ranges of the protocol's numbers and texts."""

from __future__ import annotations

from typing import Annotated

from ...lazy_named_tuple import NamedTuple

LONGEST_S = 1e14  # about three million years, a little more than the longest `timedelta`


class Range(NamedTuple):
    """The bounds of a number, or of a text's length in characters, both inclusive. `codec.decode` checks them."""

    least: float
    most: float


# Every number of the protocol, in either direction, has one of these types.
Number = Annotated[int, Range(0, 2**63 - 1)]  # numbers of attempts, jobs, frames and items; microseconds
Size = Annotated[int, Range(0, 2**47)]  # bytes; no machine has room for more in one process
Port = Annotated[int, Range(1, 65535)]
Stream = Annotated[int, Range(-1, 2**31 - 1)]
Seconds = Annotated[float, Range(0, LONGEST_S)]  # neither infinite nor not-a-number
Share = Annotated[float, Range(0, 1)]  # a fraction of a whole
Quantity = Annotated[float, Range(0, 1e6)]  # a number of processors, or watts
Name = Annotated[str, Range(0, 256)]  # a name that is sent to other nodes, too
Text = Annotated[str, Range(0, 65536)]  # a text for people
