"""What a host is for as long as it exists, and its places on networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .identity import Sshd
from .network import Network, mac


@dataclass(frozen=True, slots=True)
class Port:
    """A host's place on a network: ``link`` is the end of its cable that the controller holds, ``inside`` the other."""

    network: Network
    address: str
    link: str
    inside: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a host is, for as long as it exists; a reboot changes none of it."""

    name: str
    ports: tuple[Port, ...]
    lower: str  # overlayfs's lowerdir: the layers below its disk, the topmost first
    disk: Path  # its upper layer and what belongs to it
    console: Path  # what its first process and its sshd say
    sshd: Sshd | None
    host_key: str  # its public key, "ssh-ed25519 AAAA... name"
    visible: tuple[str, ...]
    shared: Mapping[str, Path]  # by the place where the host has it: folders that it may write to, with others


def settings(port: Port) -> list[str]:
    """The `ip` commands that make a link the host's own."""
    return [
        f"link set {port.inside} address {mac(port.address)}",
        f"addr add {port.address}/{port.network.subnet.prefixlen} dev {port.inside}",
        f"link set {port.inside} up",
    ]
