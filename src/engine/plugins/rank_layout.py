"""Facts derived from a rank: the processes on its host, the devices that it owns, the network that connects it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Literal

from ..api.errors import SpecError
from ..node.holdings import OWN

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo

Ranks = int | Literal["auto"]

_SIOCGIFADDR = 0x8915  # constant of linux/sockios.h


def checked_ranks(plugin: str, ranks: object) -> Ranks:
    """Return a user's ``ranks_per_node=``; raise `SpecError` unless it is "auto" or a number of at least 1."""
    if ranks == "auto":
        return "auto"
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise SpecError(f'plugins.{plugin}: ranks_per_node takes "auto" or a number, at least 1, not {ranks!r}.')
    return ranks


def ranks_on(facts: NodeFacts, ranks: Ranks) -> int:
    """Return the number of ranks on a node; "auto" means one per accelerator, at least one."""
    return max(1, len(facts.accelerators)) if ranks == "auto" else ranks


def devices(info: InstanceInfo) -> tuple[int, ...]:
    """Return the indexes of the node's accelerators that belong to this rank. Empty if the node has too few.

    Each rank gets the same number of accelerators, with consecutive indexes.

    A task outside a broadcast, in one of several slots of its node, gets the accelerators of its slot. A task with
    devices of its own, by ``gpus=``, sees no others.
    """
    if own := os.environ.get(OWN):
        return tuple(range(len(own.split(","))))
    if info.world_size == 1:
        index, count = info.worker, info.workers_per_node
    else:
        index, count = info.local_rank, info.local_world_size
    each = info.accelerators // count
    return tuple(range(index * each, (index + 1) * each))


def endpoint(address: str, port: int) -> str:
    """Return ``address:port`` in the form for gRPC, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def own_address(info: InstanceInfo) -> str:
    """Return the address by which the other ranks reach this rank."""
    return info.peers[info.rank].address if info.world_size > 1 else info.head_addr


def interface(address: str) -> str | None:
    """Return the network interface with this IPv4 address; None without one, as behind address translation."""
    try:
        if ip_address(address).is_loopback:
            return "lo"
    except ValueError:  # a host name, not an address
        return "lo" if address == "localhost" else None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # the interface has no IPv4 address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def unless_set(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the environment does not set yet, so that `Image(env=...)` wins."""
    return {name: os.environ.get(name, value) for name, value in variables.items()}
