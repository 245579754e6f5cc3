"""A host on loopback: a real sshd in a folder that is deleted afterwards, and OpenSSH's own client to compare with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from outrider import SSH, Host

CIPHER = "aes128-gcm@openssh.com"  # the first that Outrider offers
CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
SetEnv {variables}
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
LogLevel ERROR
"""


@dataclass
class LoopbackHost:
    folder: Path
    port: int
    user: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def provider(self) -> SSH:
        key, host_key = self.folder / "key", (self.folder / "host_key.pub").read_text().strip()
        return SSH([Host("127.0.0.1", self.port, self.user, key=key, host_key=host_key)])

    def rate(self, command: str, size_bytes: int, *, source: Path | None = None, sink: Path | None = None) -> float:
        """Return the bytes per second at which OpenSSH's client sends a file to a command there, or takes what the
        command writes into a file here. What it takes to log in is left out: a pool has logged in before.
        """
        login_s = self._took_s("true")
        return size_bytes / (self._took_s(command, source, sink) - login_s)

    def _took_s(self, command: str, source: Path | None = None, sink: Path | None = None) -> float:
        words = ["ssh", "-F", "none", "-i", str(self.folder / "key"), "-p", str(self.port), "-o", f"Ciphers={CIPHER}"]
        words += ["-o", f"UserKnownHostsFile={self.folder}/known_hosts", f"{self.user}@127.0.0.1", command]
        with (source or Path(os.devnull)).open("rb") as stdin, (sink or Path(os.devnull)).open("wb") as stdout:
            began = time.perf_counter()
            subprocess.run(words, stdin=stdin, stdout=stdout, check=True, timeout=600)
            return time.perf_counter() - began


@contextmanager
def loopback_host() -> Iterator[LoopbackHost]:
    """Its logins have a home of their own, and this Python before others on their path."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    if sshd is None or shutil.which("ssh") is None:
        raise SystemExit("OpenSSH's ssh and sshd are needed for these figures: install openssh-server.")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # of sshd's package, made at its first start
    with tempfile.TemporaryDirectory(prefix="outrider-bulk-") as name:
        folder = Path(name)
        for key in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = f'"PATH={path}" "HOME={folder}" "XDG_CACHE_HOME={folder}/cache"'
        (folder / "sshd_config").write_text(CONFIG.format(folder=folder, variables=variables))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host = LoopbackHost(folder, listener.getsockname()[1], os.environ.get("USER") or "root")
            (folder / "known_hosts").write_text(f"[127.0.0.1]:{host.port} {(folder / 'host_key.pub').read_text()}")
            words = [sshd, "-i", "-e", "-f", str(folder / "sshd_config")]
            thread = threading.Thread(target=_serve, args=(listener, words, host.started))
            thread.start()
            try:
                yield host
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()
                for each in host.started:
                    each.kill()
                    each.wait()


def _serve(listener: socket.socket, words: Sequence[str], started: list[subprocess.Popen[bytes]]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            ends = connection.fileno()
            started.append(subprocess.Popen(words, stdin=ends, stdout=ends, stderr=subprocess.DEVNULL))
