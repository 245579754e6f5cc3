"""A bare Debian root for hosts: Python, sshd and little else; made once, and kept outside the repository."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

from .commands import LabError, run

CACHE = Path("/var/cache/outrider-lab")
PACKAGES = ("iproute2", "openssh-server", "procps", "python3")
LIMIT_S = 400.0  # 46 s were measured


def debian() -> Path:
    """The root; made on first use, from where this machine has its own packages from.

    Raises:
        LabError: it could not be made here, and why.
        TimeoutError
    """
    if shutil.which("debootstrap") is None:
        raise LabError("no debootstrap (Debian package debootstrap)")
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME")
    if suite is None:
        raise LabError("/etc/os-release names no Debian release")
    mark = hashlib.sha256(" ".join((suite, *PACKAGES)).encode()).hexdigest()[:12]
    root = CACHE / f"{suite}-{mark}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _make(root, suite)
    return root


def _make(root: Path, suite: str) -> None:
    """Beside its place and renamed, so that half a root is never taken for one."""
    for abandoned in CACHE.glob("making-*"):
        shutil.rmtree(abandoned)
    making = Path(tempfile.mkdtemp(prefix="making-", dir=CACHE))
    making.chmod(0o755)
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    environment = {**os.environ, **_proxies(), "LC_ALL": "C.UTF-8"}
    run(["debootstrap", *options, suite, str(making), _mirror(suite)], limit_s=LIMIT_S, env=environment)
    shutil.rmtree(making / "var/cache/apt", ignore_errors=True)
    making.rename(root)


def _mirror(suite: str) -> str:
    """This machine's own source of the release's main packages."""
    listed = run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    )
    for line in listed.stdout.splitlines():
        codename, component, uri = line.split(maxsplit=2)
        if (codename, component) == (suite, "main"):
            return uri
    raise LabError(f"apt names no source of {suite} main")


def _proxies() -> dict[str, str]:
    """As apt is told; debootstrap's wget reads the environment."""
    said = run(["apt-config", "shell", "http", "Acquire::http::Proxy", "https", "Acquire::https::Proxy"]).stdout
    pairs = (line.partition("=") for line in said.splitlines())
    return {f"{scheme}_proxy": value.strip("'") for scheme, _, value in pairs}
