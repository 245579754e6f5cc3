"""The network addresses, as CIDRs, from which machines accept SSH connections."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence


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
