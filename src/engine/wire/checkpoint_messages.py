"""The messages about parts of checkpoints. Each rank writes one part, and nodes keep the parts in memory."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from .ranges import Name, Number, Size, Text

# --- client -> node --------------------------------------------------------------------------------------------------


class Replicate(NamedTuple):
    """A request that a node store a copy of a checkpoint part as blob ``blob``, and verify the copy.

    If the node does not have the blob yet, it copies the file ``path`` of the computer that has the original. The first
    ``size_bytes`` bytes of the blob are the part. ``digest`` None: the node does not verify the copy. The answer is
    `Replicated`.
    """

    blob: str
    path: str
    size_bytes: Size
    digest: Number | None


class Safe(NamedTuple):
    """A report that a checkpoint is safe: each of its parts has been copied to the requested number of nodes.

    ``blobs``: the names of the parts that this node keeps (see `Kept`).
    """

    blobs: tuple[str, ...]


# --- node -> client --------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A report that a rank has stored its part of a checkpoint in the node's memory, as ``blob``.

    The part contains the rank's state after ``step`` steps of the named run. ``again``: how often the rank had already
    returned to an earlier step. ``copies``: the number of nodes that must have the part. ``sharded``: whether other
    ranks store the remaining pieces of some tensors. ``digest``: a checksum of the part without its first 64 bytes. To
    compute it, take a checksum of each complete block of 256 KiB; the digest is the CRC-32 of these checksums, followed
    by the bytes after the last complete block.
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
    """A report that a checkpoint is complete in the storage. The fields have the same meaning as in `Kept`."""

    attempt: Number
    run: Name
    again: Number
    step: Number


class Joined(NamedTuple):
    """A report that from now on the ranks of a broadcast wait for each other, because they save checkpoints together.

    ``attempt``: the attempt of one rank of that broadcast.
    """

    attempt: Number


class Replicated(NamedTuple):
    """The answer to `Replicate`.

    ``path``: the file path by which other processes of the node's computer can open the blob. ``problem``: the reason,
    for people, why the node could not store or verify the blob; empty if it succeeded.
    """

    blob: str
    path: str
    problem: Text
