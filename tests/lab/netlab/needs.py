"""What this machine lacks to be a lab, in words for whoever reads why a test was skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "bash": "bash",
}
ADMINISTRATOR = 1 << 21  # CAP_SYS_ADMIN: a container's root may lack it


def missing() -> list[str]:
    """One clause for each thing that is missing; empty: hosts can be made here."""
    if os.geteuid() != 0:
        return ["it needs root, to make network namespaces"]
    if not _capabilities() & ADMINISTRATOR:
        return ["it needs CAP_SYS_ADMIN: this root may not make namespaces or mounts"]
    found = [
        f"no {Path(tool).name} (Debian package {package})"
        for tool, package in PACKAGES.items()
        if shutil.which(tool) is None
    ]
    if "overlay" not in Path("/proc/filesystems").read_text():
        found.append("no overlay file system in this kernel")
    return found


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
