"""The messages for copying blobs between the nodes of a pool. Nodes copy blobs when the client requests it."""

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
    """A permission: nodes that send the text ``ticket`` may get a blob, even while the blob is still arriving here.

    The answer is `Serving`.
    """

    ticket: Name
    blob: str
    size_bytes: Size


class Unserve(NamedTuple):
    """The withdrawal of the permission that `Serve` gave for ``ticket``."""

    ticket: Name


class Pull(NamedTuple):
    """A request to copy a blob, or its missing bytes, from another node, which serves the blob under ``ticket``.

    The answer is `Arrived`.
    """

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Copy(NamedTuple):
    """A request like `Pull`, for a blob that is verified in another way: `Arrived.digest` is empty."""

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Digest(NamedTuple):
    """A request for the digest of a blob that is on the node. The answer is `Arrived`."""

    blob: str


class PutRest(NamedTuple):
    """client -> node: like `Put`, but only the bytes of the blob from ``offset`` to the end follow.

    The node has already received the bytes before ``offset`` from another node, by `Pull`.
    """

    blob: str
    size_bytes: Size
    offset: Size


# --- node -> client --------------------------------------------------------------------------------------------------


class Serving(NamedTuple):
    """The answer to `Serve`. ``port``: the port on which the node listens for other nodes.

    ``port`` None: the node cannot listen; ``reason`` is the cause.
    """

    ticket: Name
    port: Port | None
    reason: Text = ""


class Arrived(NamedTuple):
    """A report on the bytes of a blob that this node has.

    If the blob is complete, ``digest`` is its SHA-256 in hex. If it is not, the `Pull` has failed. ``connected`` False:
    the node could not connect to the other node.
    """

    blob: str
    have_bytes: Size
    digest: Name
    connected: bool
    reason: Text = ""


# --- node -> node ----------------------------------------------------------------------------------------------------


class GetRest(NamedTuple):
    """A request for a blob, sent from node to node.

    The answer is frames with the blob's bytes from ``offset`` to the end.

    An empty frame means that no new bytes have arrived at the sender yet. After the last byte, the connection can be
    used for the next request.
    """

    ticket: Name
    offset: Size
