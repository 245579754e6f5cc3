"""The addresses from which users let themselves in, as CIDRs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence


def sources(owner: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """``ssh_from`` as CIDRs: ``"203.0.113.7"`` becomes ``"203.0.113.7/32"``. ``owner``: the provider, such as ``AWS``.

    Raises:
        ValueError: it is empty, or contains something that is no address.
    """
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        raise ValueError(f"{owner}(ssh_from=...) is empty: nobody could reach the machines")
    try:
        return tuple(dict.fromkeys(as_cidr(text) for text in texts))
    except ValueError as error:
        raise ValueError(f"{owner}(ssh_from=...): {error}: give 'auto', or such as '203.0.113.0/24'") from None


def as_cidr(text: str) -> str:
    """The CIDR of an address or a network; raises ValueError for other texts."""
    return str(ipaddress.ip_network(text.strip(), strict=False))
