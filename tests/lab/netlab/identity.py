"""Who a host is: its name, users, keys, and what its sshd allows, as files in the upper layer of its disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

PLAIN_USER = "ada"
PLAIN_UID = 2000
PASSWORD = "correct horse"  # of every user, where sshd takes passwords
PASSWORD_HASH = (  # openssl passwd -6 -salt outrider 'correct horse'
    "$6$outrider$VWUe2qMmkbq4dnP9NNyXfM/VkXjNknFXrXfTG2GM9qLTYta0MyvHCRdlIWcmri5vOmnuHTZVEKqcWiIHog/ph1"
)
OWN = ("root", "home", "tmp", "var/tmp", "mnt", "media", "srv", "etc/ssh")  # nothing of the lower root shows here


@dataclass(frozen=True, slots=True)
class Sshd:
    """What a host's sshd listens on and allows."""

    port: int = 22
    public_key: bool = True
    password: bool = False
    tcp_forwarding: bool = True  # a jump host needs it
    stream_local_forwarding: bool = True  # of unix sockets
    lines: tuple[str, ...] = ()  # more of sshd_config(5); the first of a keyword wins there, so these do

    @property
    def config(self) -> str:
        says = {True: "yes", False: "no"}
        return "\n".join(
            [
                *self.lines,
                f"Port {self.port}",
                "ListenAddress 0.0.0.0",
                "HostKey /etc/ssh/ssh_host_ed25519_key",
                "PermitRootLogin yes",
                f"PubkeyAuthentication {says[self.public_key]}",
                f"PasswordAuthentication {says[self.password]}",
                "KbdInteractiveAuthentication no",
                f"AllowTcpForwarding {says[self.tcp_forwarding]}",
                f"AllowStreamLocalForwarding {says[self.stream_local_forwarding]}",
                "Subsystem sftp internal-sftp",
                "UsePAM no",
                "UseDNS no",
                "PrintMotd no",
                "PidFile none",
                "MaxStartups 100:30:200",
                "",
            ]
        )


def write_key(path: Path, comment: str) -> str:
    """A new ed25519 key pair as OpenSSH writes it; returns the public line."""
    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    public: str = key.export_public_key().decode().strip()
    path.with_name(path.name + ".pub").write_text(public + "\n")
    return public


def write_identity(
    upper: Path,
    *,
    lower: Path,
    image: Path | None,
    name: str,
    address: str,
    sshd: Sshd,
    authorized: Sequence[str],
    hidden: Sequence[str],
    programs: Mapping[str, bytes],
) -> str:
    """Fill a new upper layer, for above ``image`` and ``lower``; returns the host's public key."""
    for own in OWN:
        folder = upper / own
        folder.mkdir(parents=True)
        if image is None or not (image / own).exists():
            hide_lower(folder)
        folder.chmod(0o1777 if own.endswith("tmp") else 0o755)
    for path in hidden:
        _hide(upper / path.lstrip("/"))
    for path, program in programs.items():
        file = upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(program)
        file.chmod(0o755)
    etc = upper / "etc"
    (etc / "hostname").write_text(name + "\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    (etc / "resolv.conf").write_text("")
    _write_users(etc, lower / "etc")
    (etc / "ssh/sshd_config").write_text(sshd.config)
    for home, uid in (("root", 0), (f"home/{PLAIN_USER}", PLAIN_UID)):
        folder = upper / home / ".ssh"
        folder.mkdir(parents=True)
        (folder / "authorized_keys").write_text("".join(f"{key.strip()}\n" for key in authorized))
        folder.parent.chmod(0o711)  # not 0700: this machine's Python may be below root's home
        folder.chmod(0o700)
        for each in (folder.parent, folder, folder / "authorized_keys"):
            os.chown(each, uid, uid)
    return write_key(etc / "ssh/ssh_host_ed25519_key", name)


def hide_lower(folder: Path) -> None:
    """Of an overlay's layer: what the layers below have in this folder is not there."""
    os.setxattr(folder, "trusted.overlay.opaque", b"y")


def _write_users(etc: Path, lower: Path) -> None:
    def lines(name: str) -> list[str]:
        kept = (lower / name).read_text().splitlines()
        return [line for line in kept if line.split(":")[0] not in {"root", PLAIN_USER}]

    plain = f"{PLAIN_USER}:x:{PLAIN_UID}:"
    tables = {
        "passwd": ["root:x:0:0:root:/root:/bin/bash", f"{plain}{PLAIN_UID}::/home/{PLAIN_USER}:/bin/bash"],
        "group": ["root:x:0:", plain],
        "shadow": [f"{user}:{PASSWORD_HASH}:20000:0:99999:7:::" for user in ("root", PLAIN_USER)],
    }
    for name, ours in tables.items():
        (etc / name).write_text("\n".join([*ours, *lines(name)]) + "\n")
    (etc / "shadow").chmod(0o600)


def _hide(path: Path) -> None:
    """As if it had been deleted: overlayfs's whiteout, a character device 0/0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
