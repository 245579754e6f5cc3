"""`outrider ssh`: opens a shell on a node of a running pool."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..api.checks import refuse
from .exit_codes import WRONG
from .node_choice import reached
from .run_choice import RunOrMachine
from .ssh_command import Way, ssh_command


def ssh(target: RunOrMachine, /, *, node: int | None = None) -> int:
    """Open a shell on a node of a running pool.

    Uses the ssh command of this computer, or docker exec or podman exec if the node is a container. ssh logs in with
    the pool's key, and accepts only the host key that the pool has pinned (on your own hosts, only the keys in your
    known_hosts). It asks no questions, and trusts no new host.

    Exits with the exit code of that command, and with 2 if there is no such node, or the node is this computer.

    Example: `outrider ssh train --node 0`

    Parameters
    ----------
    target:
        A run (id or name), or the machine of a node, such as i-0abc or a host name.
    node:
        The number of the node in its run. Default: the only node, or the first one that is ready.
    """
    nodes = reached(target, node=node)
    chosen = nodes[0]
    shell = [] if chosen.container is None else chosen.container.shell(terminal=sys.stdin.isatty())
    if chosen.way is not None:
        with pinned(chosen.way) as pins:
            return run_ssh(ssh_command(chosen.way, pins, terminal=True, command=shell))
    if not shell:
        print(
            f"outrider: {chosen.name} is this computer: `cd {chosen.folder}` is where its tasks work.", file=sys.stderr
        )
        return WRONG
    return run_ssh(shell)


@contextmanager
def pinned(way: Way) -> Iterator[Path]:
    """Yield the path of a private known_hosts file with the pinned host keys. It is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="outrider-ssh-") as folder:
        pins = Path(folder) / "known_hosts"
        pins.write_text(way.pins)
        yield pins


def run_ssh(words: Sequence[str]) -> int:
    try:
        with subprocess.Popen(words) as process:  # noqa: S603  words, for no shell
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # the remote shell handles Ctrl-C: keep waiting for ssh's end
                    continue
    except FileNotFoundError:
        refuse(f"there is no {words[0]} on this computer's PATH: install it (ssh is of OpenSSH's client).")
