"""A network that exists on this machine alone: a bridge, its subnet, and the links of the hosts that are on it."""

from __future__ import annotations

import ipaddress
import json
import threading

from .commands import LabError, ip, run

FIRST_HOST = 10


class Network:
    """Hosts on it reach each other, and the controller if it has an address there. Nothing is forwarded beyond it."""

    def __init__(self, bridge: str, subnet: ipaddress.IPv4Network, *, controller: bool) -> None:
        """``controller``: whether this machine itself is on it, with the first address."""
        self.bridge, self.subnet = bridge, subnet
        self.controller = str(subnet[1]) if controller else None
        self._taken: set[str] = set()
        self._lock = threading.Lock()
        lines = [f"link add {bridge} address {mac(subnet[1])} type bridge"]
        if controller:
            lines.append(f"addr add {subnet[1]}/{subnet.prefixlen} dev {bridge}")
        ip(*lines, f"link set {bridge} up")

    def take(self, address: str | None = None) -> str:
        """Reserve an address: this one, or the next free one.

        Raises:
            LabError: taken, none left, or not of this network.
        """
        with self._lock:
            if address is None:
                free = (str(each) for each in list(self.subnet)[FIRST_HOST:-1] if str(each) not in self._taken)
                address = next(free, None)
                if address is None:
                    raise LabError(f"{self.subnet} has no address left")
            elif address in self._taken or ipaddress.ip_address(address) not in self.subnet:
                raise LabError(f"{address} is taken, or not of {self.subnet}")
            self._taken.add(address)
            return address

    def release(self, address: str) -> None:
        with self._lock:
            self._taken.discard(address)

    def remember(self, address: str) -> None:
        """The controller goes on sending to this host, alive or not, and hears silence: a cloud's answer.

        Without it the host stops answering ARP and connections end with "no route to host" after 3 s: a LAN's answer.
        """
        if self.controller is not None:
            entry = f"{address} lladdr {mac(address)} dev {self.bridge} nud permanent"
            run(["ip", "neigh", "replace", *entry.split()])

    def forget(self, address: str) -> None:
        if self.controller is not None:
            run(["ip", "neigh", "del", address, "dev", self.bridge], check=False)

    def cut(self) -> None:
        """The controller is alone until `mend`, and nothing tells it so, as when its provider fails; the hosts still
        reach each other. What it sends and hears is lost at its end of the bridge.
        """
        chains = [
            f'add chain netdev {self.bridge} {hook} {{ type filter hook {hook} device "{self.bridge}" priority 0; }}'
            for hook in ("ingress", "egress")
        ]
        rules = [f"add rule netdev {self.bridge} {hook} meta protocol ip drop" for hook in ("ingress", "egress")]
        run(["nft", "-f", "-"], stdin="\n".join([f"add table netdev {self.bridge}", *chains, *rules]) + "\n")

    def mend(self) -> None:
        run(["nft", "-f", "-"], stdin=f"add table netdev {self.bridge}\ndelete table netdev {self.bridge}\n")

    def close(self) -> None:
        if self.controller is not None:
            self.mend()
        run(["ip", "link", "del", self.bridge], check=False)


def mac(address: str | ipaddress.IPv4Address) -> str:
    """The same for the same address, so that a host that comes back is the one that was known."""
    return "02:6f:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)


def in_use() -> list[ipaddress.IPv4Network]:
    """The subnets that this machine already has addresses or routes in."""
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout)
    found = (each["dst"] for each in routes if each.get("dst") not in {None, "default"})
    return [ipaddress.IPv4Network(each, strict=False) for each in found]
