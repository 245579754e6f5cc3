"""A command that runs on a host, started from outside it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from .commands import LIMIT_S
from .proc import Process, this

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Spawned:
    """A command that runs on a host."""

    def __init__(self, entering: subprocess.Popen[bytes]) -> None:
        """``entering``: the nsenter whose child it is to be."""
        self._entering = entering
        self._process = self._child()

    @property
    def alive(self) -> bool:
        return self._entering.poll() is None

    def kill(self) -> None:
        """It, and not the nsenter: an orphan from outside is reaped by this machine's first process, in its own time,
        and a host's namespaces wait for that.
        """
        if self._process is not None:
            self._process.kill()
        self._entering.wait(LIMIT_S)

    def wait(self, within_s: float = LIMIT_S) -> int:
        """Its exit status, as a shell has it."""
        return self._entering.wait(within_s)

    def _child(self) -> Process | None:
        pid = self._entering.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while self._entering.poll() is None:
            if found := children.read_text().split():
                return this(int(found[0]))
            time.sleep(0.001)
        return None


def environment(user: str) -> dict[str, str]:
    home = "/root" if user == "root" else f"/home/{user}"
    return {"PATH": PATH, "HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8"}
