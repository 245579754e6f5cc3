"""The messages about blobs that nodes of a pool hand to each other, as the client orders it."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from .ranges import Name, Port, Size, Text

# --- client -> node --------------------------------------------------------------------------------------------------


class Keys(NamedTuple):
    """The certificate and the key, as PEM, by which the pool's nodes know each other. They stay in memory."""

    certificate: bytes
    key: bytes


class Serve(NamedTuple):
    """Lets nodes that know the ``ticket`` have a blob, also while it arrives; answered by `Serving`."""

    ticket: Name
    blob: str
    size_bytes: Size


class Unserve(NamedTuple):
    """Ends what `Serve` has allowed."""

    ticket: Name


class Pull(NamedTuple):
    """Gets a blob, or the rest of it, from the node that serves it under a ``ticket``; answered by `Arrived`."""

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Copy(NamedTuple):
    """Gets a blob as `Pull` does that is verified in another way: the digest that `Arrived` tells is ""."""

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Digest(NamedTuple):
    """Asks for the digest of a blob that is there; answered by `Arrived`."""

    blob: str


class PutRest(NamedTuple):
    """client -> node: as `Put`, of the bytes from ``offset`` on. A `Pull` has brought those before."""

    blob: str
    size_bytes: Size
    offset: Size


# --- node -> client --------------------------------------------------------------------------------------------------


class Serving(NamedTuple):
    """Answers `Serve`: the port where the node listens; None: it cannot, for this reason."""

    ticket: Name
    port: Port | None
    reason: Text = ""


class Arrived(NamedTuple):
    """Says how much of a blob is there. If all is, ``digest`` is its SHA-256 in hex; otherwise its `Pull` has ended.

    ``connected`` False: the other node was not reached.
    """

    blob: str
    have_bytes: Size
    digest: Name
    connected: bool
    reason: Text = ""


# --- node -> node ----------------------------------------------------------------------------------------------------


class GetRest(NamedTuple):
    """Asks on a connection between nodes for a blob: frames with its bytes from ``offset`` on are the answer.

    One without bytes says that there are none yet. When all have come, the next one may be sent.
    """

    ticket: Name
    offset: Size
