"""The messages about blobs that nodes of a pool send to each other on the client's order."""

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
    """Ends the permission of `Serve`."""

    ticket: Name


class Pull(NamedTuple):
    """Gets a blob, or the rest of it, from the node that serves it under a ``ticket``; answered by `Arrived`."""

    blob: str
    size_bytes: Size
    ticket: Name
    address: Name
    port: Port


class Copy(NamedTuple):
    """Gets a blob like `Pull`, but one verified in another way: `Arrived` has "" as its digest."""

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
    """Reports how much of a blob has arrived. If all, ``digest`` is its SHA-256 in hex; otherwise its `Pull` has ended.

    ``connected`` False: the other node was not reached.
    """

    blob: str
    have_bytes: Size
    digest: Name
    connected: bool
    reason: Text = ""


# --- node -> node ----------------------------------------------------------------------------------------------------


class GetRest(NamedTuple):
    """Requests a blob on a connection between nodes: frames with its bytes from ``offset`` on are the answer.

    A frame without bytes means that there are none yet. After all bytes, the next request may be sent.
    """

    ticket: Name
    offset: Size
