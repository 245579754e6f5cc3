"""`outrider ssh`: opens a shell on a node of a living pool."""

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
    """Open a shell on a node of a living pool.

    It is the system's ssh, or for a container docker exec or podman exec. The host key is the pinned one, or for hosts
    of your own what your known_hosts have, and the key the pool's: nothing is asked, and no host trusted anew. Exits as
    that command does, and with 2 where there is no such node, or it is this computer.

    Example: `outrider ssh train --node 0`

    Parameters
    ----------
    target:
        A run, or the machine of a node, as i-0abc or the name of a host.
    node:
        The run's node of this number. Default: the only one, or the first that is ready.
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
    """Yield a private file with the pinned host keys. The file is removed at the end of the block."""
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
                except KeyboardInterrupt:  # the remote shell handles Ctrl-C, or ssh ends by itself
                    continue
    except FileNotFoundError:
        refuse(f"there is no {words[0]} on this computer's PATH: install it (ssh is of OpenSSH's client).")
