"""The messages about the parts of checkpoints that nodes keep in memory."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from .ranges import Name, Number, Size, Text

# --- client -> node --------------------------------------------------------------------------------------------------


class Replicate(NamedTuple):
    """Makes the node store a part of a checkpoint as ``blob``, and verify it; answered by `Replicated`.

    Unless the node has the blob, it opens ``path`` for it, on the computer of the node that has the part. Of the blob
    the first ``size_bytes`` are the part. ``digest`` None: it is not verified.
    """

    blob: str
    path: str
    size_bytes: Size
    digest: Number | None


class Safe(NamedTuple):
    """Says of blobs that came with `Kept` that all parts of their version are on as many nodes as was asked for."""

    blobs: tuple[str, ...]


# --- node -> client --------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Says that a rank has left its part of a checkpoint in the node's memory, as ``blob``.

    The part is the ranks' state after ``step`` steps, of the run of this name. The rank has gone back to an earlier
    step ``again`` times before. ``copies``: on how many nodes the part is to be. ``sharded``: other ranks have the rest
    of some tensors. ``digest``: of the part but for its first 64 bytes,
    a CRC-32 of the sums of its whole blocks of 256 KiB, and of the rest behind them.
    """

    attempt: Number
    run: Name
    again: Number
    step: Number
    copies: Number
    sharded: bool
    size_bytes: Size
    digest: Number
    blob: str


class Stored(NamedTuple):
    """Says that a checkpoint is complete in the storage. The fields are those of `Kept`."""

    attempt: Number
    run: Name
    again: Number
    step: Number


class Joined(NamedTuple):
    """Reports that the ranks of the attempt's broadcast wait for each other from now on, as at their checkpoints."""

    attempt: Number


class Replicated(NamedTuple):
    """Answers `Replicate`. ``path``: the path of the blob for other processes on the node's computer. ``problem``: why
    the node lacks the verified blob, for people; empty: it has the blob.
    """

    blob: str
    path: str
    problem: Text
