"""Command lines that run a program in a container by Docker or Podman, on this computer or on a host. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...lazy_dataclass import dataclass
from ...providers.base import Address, Login
from ..runs.nodes import LivingNode
from .ssh_command import Way

_SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


@dataclass(frozen=True, slots=True)
class InContainer:
    """A container, and how to run commands in it.

    ``name``: the container's name. ``runtime``: the command of the container runtime, such as ``("sudo", "docker")``.
    ``host``: how to reach the host of the container; None: this computer.
    """

    name: str
    runtime: tuple[str, ...]
    host: Way | None = None

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` in the container, with an empty standard input."""
        return [*self.runtime, "exec", self.name, *command]

    def shell(self, *, terminal: bool) -> list[str]:
        """Return the command line that opens a shell in the container.

        ``terminal``: the shell's input is a terminal.
        """
        return [*self.runtime, "exec", "-it" if terminal else "-i", self.name, *_SHELL]


def container_of(about: Mapping[str, Any], node: LivingNode) -> InContainer | None:
    """Return the container of a node; None: the node is not a container.

    ``about``: the description of the node's run, from run.json.
    """
    runtime, (host, _, name) = shlex.split(node.facts.get("runtime", "")), node.machine.rpartition("/")
    if not runtime:
        return None
    return InContainer(name, tuple(runtime), _host_way(about, host) if host else None)


def _host_way(about: Mapping[str, Any], host: str) -> Way:
    from ...providers.shared.login_host import Place

    specs = about.get("spec", {}).get("specs", ())
    providers = [spec["provider"] for spec in specs if isinstance(spec.get("provider"), Mapping)]
    logins = [each["login"] for each in providers if host in each.get("hosts", ()) and each.get("login")]
    login = logins[0] if logins else {}

    def files(name: str) -> tuple[str, ...]:
        return tuple(str(Path(about.get("cwd", "")) / path) for path in login.get(name, ()))

    place = Place.parse(host, Login(keys=files("keys"), known_hosts=files("known_hosts"), config=files("config")))
    return Way(Address(place.host, place.port, user=place.user), login=place.login)
