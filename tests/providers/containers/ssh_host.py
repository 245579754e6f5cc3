"""A host on loopback with a real sshd, whose logins find a Podman of the test's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from .podman import Podman

# SHLVL: bash reads ~/.bashrc for a command by SSH unless it is inside of another shell; what is there may take long.
CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
SetEnv SHLVL=1 {variables}
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
LogLevel ERROR
"""


@dataclass
class Host:
    folder: Path
    port: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"root@127.0.0.1:{self.port}"

    @property
    def login(self) -> dict[str, str]:
        """The options of a provider with which it lets one in."""
        return {"key": str(self.folder / "key"), "known_hosts": str(self.folder / "known_hosts")}

    def cut(self) -> None:
        """End every connection, as a network does that fails; others are let in."""
        for each in self.started:
            each.kill()


@contextmanager
def ssh_host(folder: Path, podman: Podman) -> Iterator[Host]:
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert sshd is not None
    Path("/run/sshd").mkdir(exist_ok=True)  # Debian's sshd does without it only where it is started by systemd
    for name in ("key", "host_key"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / name)
        key.write_public_key(folder / f"{name}.pub")
        (folder / name).chmod(0o600)
    variables = " ".join(f"{name}={value}" for name, value in podman.env.items())
    (folder / "sshd_config").write_text(CONFIG.format(folder=folder, variables=variables))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = Host(folder, listener.getsockname()[1])
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{host.port} {(folder / 'host_key.pub').read_text()}")

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    ends = connection.fileno()
                    command = [sshd, "-i", "-e", "-f", str(folder / "sshd_config")]
                    with (folder / "log").open("ab") as log:
                        host.started.append(subprocess.Popen(command, stdin=ends, stdout=ends, stderr=log))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield host
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in host.started:
                each.kill()
                each.wait()


def has_sshd() -> bool:
    return os.geteuid() == 0 and shutil.which("sshd", path="/usr/sbin:/usr/bin") is not None
