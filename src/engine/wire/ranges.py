"""The allowed ranges of numbers and texts in the protocol."""

from __future__ import annotations

from typing import Annotated

from ...lazy_named_tuple import NamedTuple

LONGEST_S = 1e14  # about three million years, which is slightly more than the longest `timedelta`


class Range(NamedTuple):
    """The bounds, both inclusive, of a number or of the number of characters of a text. `codec.decode` checks them."""

    least: float
    most: float


# Every number in the protocol's messages has one of these types.
Number = Annotated[int, Range(0, 2**63 - 1)]  # numbers of attempts, jobs, frames and items; microseconds
Size = Annotated[int, Range(0, 2**47)]  # bytes (128 TiB); no machine has room for more in one process
Port = Annotated[int, Range(1, 65535)]
Stream = Annotated[int, Range(-1, 2**31 - 1)]
Seconds = Annotated[float, Range(0, LONGEST_S)]  # infinity and not-a-number are not allowed
Share = Annotated[float, Range(0, 1)]  # a fraction of a whole
Quantity = Annotated[float, Range(0, 1e6)]  # a number of processors, or watts
Name = Annotated[str, Range(0, 256)]  # a name, which may be sent on to other nodes
Text = Annotated[str, Range(0, 65536)]  # a text for people
