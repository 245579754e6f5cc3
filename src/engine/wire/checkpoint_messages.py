"""The messages about checkpoint parts that nodes keep in memory."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from .ranges import Name, Number, Size, Text

# --- client -> node --------------------------------------------------------------------------------------------------


class Replicate(NamedTuple):
    """A request to store a part of a checkpoint as ``blob`` and to verify it. The answer is `Replicated`.

    Unless the node already has the blob, it opens ``path``, which is on the computer of the node that has the part. The
    first ``size_bytes`` of the blob are the part. ``digest`` None: do not verify the part.
    """

    blob: str
    path: str
    size_bytes: Size
    digest: Number | None


class Safe(NamedTuple):
    """A report that all parts of a version are on the requested number of nodes.

    ``blobs``: this node's parts (`Kept`).
    """

    blobs: tuple[str, ...]


# --- node -> client --------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A report that a rank has stored its part of a checkpoint in the node's memory, as ``blob``.

    The part is the state after ``step`` steps of the named run. ``again``: how many times before this the rank has
    returned to an earlier step. ``copies``: the number of nodes that must have the part. ``sharded``: whether other
    ranks have the rest of some tensors. ``digest``: a CRC-32 of the part without its first 64 bytes, computed over the
    sums of its whole blocks of 256 KiB and over the remaining bytes.
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
    """A report that a checkpoint is complete in the storage. The fields are those of `Kept`."""

    attempt: Number
    run: Name
    again: Number
    step: Number


class Joined(NamedTuple):
    """A report that from now on the ranks of the attempt's broadcast wait for each other, as at checkpoints."""

    attempt: Number


class Replicated(NamedTuple):
    """The answer to `Replicate`.

    ``path``: the path of the blob for other processes on the node's computer. ``problem``: for people, why the node
    does not have the verified blob; empty if it has the blob.
    """

    blob: str
    path: str
    problem: Text
