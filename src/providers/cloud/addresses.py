"""The network addresses, as CIDRs, from which machines accept SSH connections.

By default, this is the public address of this computer (`own_address`). Its libraries are imported when they are
needed, because users' classes import this module to check their options.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from ..errors import BadRequest


def sources(owner: str, addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return the option ``ssh_from`` as CIDRs: ``"203.0.113.7"`` becomes ``"203.0.113.7/32"``.

    ``owner``: the provider's name for error texts, such as ``AWS``.

    Raises:
        ValueError: The option is empty, or contains a text that is not an address.
    """
    texts = (
        [addresses]
        if isinstance(addresses, str)
        else list(addresses)
        if isinstance(addresses, Iterable)
        else [addresses]
    )
    if not texts:
        raise ValueError(f"{owner}(ssh_from=...) is empty: nobody could reach the machines")
    try:
        return tuple(dict.fromkeys(as_cidr(text) for text in texts))
    except ValueError as error:
        raise ValueError(f"{owner}(ssh_from=...): {error}: give 'auto', or such as '203.0.113.0/24'") from None


def reached_by(owner: str, address: str, ssh_from: str | Sequence[str]) -> str | tuple[str, ...]:
    """Check the options ``address`` and ``ssh_from``. Return ``ssh_from``: ``"auto"``, or the CIDRs from `sources`.

    Raises:
        ValueError: ``address`` is neither ``"public"`` nor ``"private"``, or ``ssh_from`` is not an address.
    """
    if address not in ("public", "private"):
        raise ValueError(f"{owner}(address=...) is 'public' or 'private', not {address!r}")
    return "auto" if ssh_from == "auto" else sources(owner, ssh_from)


def as_cidr(text: object) -> str:
    """Return the CIDR of an address or a network; raise ValueError for anything else."""
    if not isinstance(text, str):  # `ipaddress` would also accept a number
        raise ValueError(f"{text!r} is no address")
    return str(ipaddress.ip_network(text.strip(), strict=False))


# --- the address of this computer -------------------------------------------------------------------------------------


CHECKIP = "https://checkip.amazonaws.com"  # responds with the caller's address, as one line
CHECKIP_S = 5.0


async def own_address(owner: str, endpoint_url: str | None = None) -> str:
    """Return this computer's public address, as a CIDR. ``owner``: the provider's name, such as ``AWS``.

    ``endpoint_url``: the address of a service other than the cloud's own. If it is given, return the local address from
    which this computer connects to that service.

    Raises:
        BadRequest: The address cannot be determined.
    """
    from http.client import HTTPException
    from urllib.parse import urlsplit

    import anyio
    import anyio.abc

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
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from ..shared.threads import in_thread

    def ask() -> bytes:
        try:
            with urlopen(url, timeout=CHECKIP_S) as answer:  # noqa: S310 (the URL is ours)
                text: bytes = answer.read(100)
                return text
        except HTTPError as error:
            error.close()  # an HTTPError keeps the connection open until it is closed
            raise

    return (await in_thread(ask, abandon=True)).decode("ascii", "replace")
