"""The messages about blobs that the nodes of a pool send to each other when the client requests it."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from .ranges import Name, Port, Size, Text

# --- client -> node --------------------------------------------------------------------------------------------------


class Keys(NamedTuple):
    """The certificate and the key (PEM) with which the pool's nodes authenticate each other.

    Nodes keep them in memory only.
    """

    certificate: bytes
    key: bytes


class Serve(NamedTuple):
    """The permission for nodes that send the ``ticket`` to get a blob, even while it arrives.

    The answer is `Serving`.
    """

    ticket: Name
    blob: str
    size_bytes: Size


class Unserve(NamedTuple):
    """The end of the permission of `Serve`."""

    ticket: Name


class Pull(NamedTuple):
    """A request to get a blob, or the rest of it, from the node that serves it under ``ticket``.

    The answer is `Arrived`.
    """

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Copy(NamedTuple):
    """A request like `Pull`, for a blob that is verified in another way: `Arrived` has "" as its digest."""

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Digest(NamedTuple):
    """A request for the digest of a blob on the node. The answer is `Arrived`."""

    blob: str


class PutRest(NamedTuple):
    """client -> node: like `Put`, but only the bytes from ``offset`` on follow.

    A `Pull` has brought the bytes before.
    """

    blob: str
    size_bytes: Size
    offset: Size


# --- node -> client --------------------------------------------------------------------------------------------------


class Serving(NamedTuple):
    """The answer to `Serve`: the port on which the node listens; None: it cannot listen, for this ``reason``."""

    ticket: Name
    port: Port | None
    reason: Text = ""


class Arrived(NamedTuple):
    """A report on the bytes of a blob that have arrived.

    If all have arrived, ``digest`` is the SHA-256 in hex; if not, the `Pull` has failed. ``connected`` False: no
    connection to the other node was established.
    """

    blob: str
    have_bytes: Size
    digest: Name
    connected: bool
    reason: Text = ""


# --- node -> node ----------------------------------------------------------------------------------------------------


class GetRest(NamedTuple):
    """A request for a blob on a connection between nodes. The answer is frames with its bytes from ``offset`` on.

    A frame without bytes means that no new bytes have arrived yet. After the last byte, the next request may be sent.
    """

    ticket: Name
    offset: Size
