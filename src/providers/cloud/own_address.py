"""The public address of this computer: machines accept SSH from this address, unless the user gives other addresses."""

from __future__ import annotations

from collections.abc import Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import anyio
import anyio.abc

from ..errors import BadRequest
from ..threads import in_thread
from .addresses import as_cidr, sources

CHECKIP = "https://checkip.amazonaws.com"  # responds with the caller's address, as one line
CHECKIP_S = 5.0


async def own_address(owner: str, endpoint_url: str | None = None) -> str:
    """Return this computer's public address, as a CIDR. ``owner``: the provider's name, such as ``AWS``.

    ``endpoint_url``: the address of a service other than the cloud's own. If it is given, return the local address from
    which this computer connects to that service.

    Raises:
        BadRequest: The address cannot be determined.
    """
    host = urlsplit(endpoint_url or "").hostname
    try:
        if host:
            # connecting a UDP socket sends nothing: it only chooses the local address
            async with await anyio.create_connected_udp_socket(host, 9) as there:
                return as_cidr(there.extra(anyio.abc.SocketAttribute.local_address)[0])  # noqa: S610 (no Django)
        return as_cidr(await _text_at(CHECKIP))
    except (OSError, HTTPException, ValueError) as error:
        raise BadRequest(
            f"this computer's public address could not be learnt from {host or CHECKIP} "
            f"({error or type(error).__name__}): give {owner}(ssh_from='203.0.113.7/32'), with its own"
        ) from None


async def let_in(owner: str, ssh_from: str | Sequence[str], endpoint_url: str | None = None) -> tuple[str, ...]:
    """Return the addresses in the option ``ssh_from`` as CIDRs. For ``"auto"``, this is this computer's `own_address`.

    Raises:
        BadRequest: The address cannot be determined.
    """
    return sources(owner, await own_address(owner, endpoint_url) if ssh_from == "auto" else ssh_from)


async def _text_at(url: str) -> str:
    """Return the first 100 bytes of the text at a URL. The environment's proxies are used."""

    def ask() -> bytes:
        try:
            with urlopen(url, timeout=CHECKIP_S) as answer:  # noqa: S310 (the URL is ours)
                text: bytes = answer.read(100)
                return text
        except HTTPError as error:
            error.close()  # an HTTPError keeps the connection open until it is closed
            raise

    return (await in_thread(ask, abandon=True)).decode("ascii", "replace")
