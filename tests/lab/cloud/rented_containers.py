"""A test cloud's rented containers are hosts of a lab: each runs its command, and has its ports under other numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from .hypervisor import LabHypervisor, Mishap, _Powered

COMMAND = "/var/lib/container"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAPPED = re.compile(r"[A-Z]+_TCP_PORT_(\d+)")  # the variable that tells a container the public number of its port


class RentedContainers(LabHypervisor):
    """As `LabHypervisor`, for clouds whose machines are containers: user data is a command, metadata are variables.

    A container's first process is the host's here and not the command, so that the host goes on when the command ends.
    """

    def _start(self, powered: _Powered, mishaps: Sequence[Mishap]) -> None:
        variables = {"PATH": PATH, "HOME": "/root", **powered.boot.metadata}
        said = shlex.join(f"{name}={value}" for name, value in variables.items())
        powered.host.path(COMMAND).write_text(f"exec env -i {said} {powered.boot.user_data}\n")
        powered.host.start("sh", COMMAND)

    def _connect(self, powered: _Powered) -> None:
        found = [(_MAPPED.fullmatch(name), value) for name, value in powered.boot.metadata.items()]
        rules = [f"tcp dport {public} redirect to :{port[1]}" for port, public in found if port]
        lines = ["table ip container {", "chain ports {", "type nat hook prerouting priority -100", *rules, "}", "}"]
        powered.host.run("nft", "-f", "-", stdin="\n".join([*lines, ""]))
