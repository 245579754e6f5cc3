"""A lab: a network of hosts that belong to one test, and that are gone when it ends, however it ends."""

from __future__ import annotations

import ipaddress
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from .cgroups import Groups
from .commands import LabError, run
from .host import Host
from .identity import OWN, Sshd, hide_lower, write_identity, write_key
from .mounts import unseen
from .network import Network, in_use
from .plan import Plan, Port
from .state import State, claim

SUBNETS = "10.{second}.{number}.0/24"  # of lab `number`; second: 77 for its first network, 78 for the next, ...
FIRST = 77


class Lab:
    """Several can exist at once, in one process or in many. Hosts may be made from any thread."""

    def __init__(self, *, visible: Sequence[Path] = (Path(sys.prefix), Path(sys.base_prefix))) -> None:
        """``visible``: what hosts on this machine's root must find at the same path, also where it is mounted here.

        A host sees this machine's files as they were when it first looked: do not change them while it lives.
        """
        self._visible = visible
        self._state: State = claim()
        self._hosts: dict[str, Host] = {}
        self._networks: list[Network] = []
        self._made = self._links = 0
        self._closed = False
        self._lock = threading.Lock()
        try:
            self._state.disks.mkdir()
            run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(self._state.disks)])
            self.key = self._state.folder / "id_ed25519"
            self.public_key = write_key(self.key, "lab")
            self.network = self.add_network(controller=True)
        except BaseException:
            self._state.remove()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def number(self) -> int:
        """It is in the name of everything that the lab makes on this machine; see `leftovers`."""
        return self._state.number

    @property
    def address(self) -> str:
        """By which hosts reach this machine: for what serves them here."""
        assert self.network.controller is not None, "the controller is on the lab's own network"
        return self.network.controller

    @property
    def hosts(self) -> list[Host]:
        return list(self._hosts.values())

    @property
    def known_hosts(self) -> str:
        """The text of a ``known_hosts`` file for all of them."""
        return "".join(host.known_hosts for host in self.hosts)

    def add_network(self, *, controller: bool = False) -> Network:
        """One more; without the controller, only through a host that is on another one too can it be reached."""
        with self._lock:
            number = len(self._networks)
            bridge = self._state.prefix if number == 0 else f"{self._state.prefix}-b{number}"
            network = Network(bridge, self._subnet(number), controller=controller)
            self._networks.append(network)
            return network

    def create(
        self,
        name: str | None = None,
        *,
        address: str | None = None,
        networks: Sequence[Network] = (),
        lower: Path = Path("/"),
        image: Path | None = None,
        sshd: Sshd | None = Sshd(),  # noqa: B008 - immutable
        authorized: Sequence[str] | None = None,
        disk_bytes: int | None = None,
        memory_bytes: int | None = None,
        hidden: Sequence[str] = (),
        programs: Mapping[str, bytes] = MappingProxyType({}),
        shared: Mapping[str, Path] = MappingProxyType({}),
        own_cgroups: bool = False,
        wait: bool = True,
    ) -> Host:
        """Boot a host.

        ``address``: on the first of its ``networks`` (none given: the lab's own). ``lower``: the root that it sees and
        cannot change: this machine's, or that of `debian`; with an ``image`` of `image` upon it. ``sshd``: None for no
        server. ``authorized``: public keys that may log in, by default the lab's. ``hidden``: paths that are not
        there. ``programs``: executable files that are, whatever its root has there. ``shared``: by its place, a
        `folder` of the lab's that other hosts may have as well. ``own_cgroups``: it may make control groups, below its
        own, where this kernel has version 1. ``wait``: until sshd listens.
        """
        with self._lock:
            name = name or f"h{self._made}"
            self._made += 1
        ports = self._plug(networks or (self.network,), address)
        disk = self._state.disks / name
        try:
            disk.mkdir()
        except FileExistsError:
            raise LabError(f"there is a host called {name} already") from None
        if disk_bytes is not None:
            run(["mount", "-t", "tmpfs", "-o", f"mode=0755,size={disk_bytes}", "tmpfs", str(disk)])
        for folder in ("upper", "work", "root"):
            (disk / folder).mkdir()
        host_key = write_identity(
            disk / "upper",
            lower=lower,
            image=image,
            name=name,
            address=ports[0].address,
            sshd=sshd or Sshd(),
            authorized=[self.public_key] if authorized is None else authorized,
            hidden=hidden,
            programs=programs,
        )
        visible = unseen(self._visible, hidden=OWN) if lower == Path("/") else ()
        console = self._state.folder / f"{name}.console"
        layers = str(lower) if image is None else f"{image}:{lower}"
        groups = Groups(self._state.group, name)
        places = {**shared, **(groups.places if own_cgroups else {})}
        plan = Plan(name, ports, layers, disk, console, sshd, host_key, visible, places)
        self._state.note_groups(groups.tops)
        host = Host(plan, groups, started=self._state.note, gone=self._forget)
        self._hosts[name] = host
        try:
            if memory_bytes is not None:
                host.limit_memory(memory_bytes)
            host.power_on()
            if wait:
                host.wait_up()
        except BaseException:
            host.destroy()
            raise
        return host

    def create_many(
        self,
        count: int,
        *,
        lower: Path = Path("/"),
        sshd: Sshd | None = Sshd(),  # noqa: B008 - immutable
        disk_bytes: int | None = None,
    ) -> list[Host]:
        """Boot several; they boot at the same time."""
        made = [self.create(lower=lower, sshd=sshd, disk_bytes=disk_bytes, wait=False) for _ in range(count)]
        for host in made:
            host.wait_up()
        return made

    def image(self, host: Host, *paths: str) -> Path:
        """What `create` puts below new hosts' disks: a copy of what is at these paths of this one, globs below /home.

        Who owns what is kept, by its number.
        """
        folder = self._state.disks / f"image-{self._made}"
        home = folder / "home"
        home.mkdir(parents=True)
        hide_lower(home)
        root = host.path("/")
        found = [str(path.relative_to(root)) for pattern in paths for path in root.glob(pattern.lstrip("/"))]
        run(["env", f"--chdir={root}", "cp", "--archive", "--parents", *found, str(folder)])
        return folder

    def folder(self, name: str) -> Path:
        """A new one, in memory, for hosts to share; it is gone with the lab."""
        folder = self._state.disks / f"folder-{name}"
        folder.mkdir(mode=0o755)
        return folder

    @contextmanager
    def limited_cores(self, cores: float) -> Iterator[None]:
        """This process, the hosts' controller, has no more than so many meanwhile, with what it starts."""
        groups = Groups(self._state.group, "controller")
        self._state.note_groups(groups.tops)
        groups.limit_cores(cores)
        groups.join(os.getpid())
        try:
            yield
        finally:
            groups.leave(os.getpid())
            groups.remove()

    def close(self) -> None:
        """Everything is gone when this returns. Again, it does nothing: another lab may have the number."""
        if self._closed:
            return
        self._closed = True
        try:
            for host in self.hosts:
                host.destroy()
            for network in self._networks:
                network.close()
        finally:
            self._state.remove()

    def _plug(self, networks: Sequence[Network], address: str | None) -> tuple[Port, ...]:
        ports: list[Port] = []
        for position, network in enumerate(networks):
            with self._lock:
                self._links += 1
                link = f"{self._state.prefix}-{self._links}"
            taken = network.take(address if position == 0 else None)
            ports.append(Port(network, taken, link, f"eth{position}"))
        return tuple(ports)

    def _forget(self, host: Host) -> None:
        self._hosts.pop(host.name, None)

    def _subnet(self, number: int) -> ipaddress.IPv4Network:
        """The lab's next subnet; one that this machine is already on would not reach our hosts."""
        taken = in_use()
        for second in range(FIRST + number, 256):
            subnet = ipaddress.IPv4Network(SUBNETS.format(second=second, number=self._state.number))
            if not any(subnet.overlaps(each) for each in taken):
                return subnet
        raise LabError("every subnet 10.x is in use on this machine")
