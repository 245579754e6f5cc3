"""Podman with a storage of its own, and an image without a registry: a bare tree, in which the host's /usr is seen."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

IMAGE = "localhost/outrider-test:1"
USR = "/usr:/usr:ro"  # a volume of every container
CACHE = Path("/var/lib/containers")  # where Podman keeps what it knows of registries, wherever its storage is
MISSING = "" if os.geteuid() == 0 and shutil.which("podman") and shutil.which("runc") else "no podman and runc for root"
# runc, as crun refuses the hybrid cgroups of some machines; limits within what a process may raise.
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
tmp_dir = "{folder}/tmp"
volume_path = "{folder}/volumes"
"""
STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{folder}/root"
runroot = "{folder}/run"
"""


@dataclass
class Podman:
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *argv: str, stdin: bytes = b"") -> str:
        env = {**os.environ, **self.env}
        done = subprocess.run(["podman", *argv], input=stdin, env=env, capture_output=True, check=False)
        assert not done.returncode, done.stderr.decode()
        return done.stdout.decode()

    @property
    def names(self) -> list[str]:
        """The containers that exist, in whatever state."""
        return self("ps", "--all", "--format", "{{.Names}}").split()

    @property
    def at_work(self) -> list[str]:
        """The processes of this Podman. A killed client's `podman run` goes on, and makes its container."""
        mark, found = f"CONTAINERS_CONF={self.folder}/".encode(), list[str]()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if mark in (process / "environ").read_bytes():
                    found.append(process.name)
        return found


@contextmanager
def podman(folder: Path) -> Iterator[Podman]:
    """Podman, whose every container, image, mount and file is gone at the end."""
    cached = CACHE.exists()
    (folder / "containers.conf").write_text(CONTAINERS_CONF.format(folder=folder))
    (folder / "storage.conf").write_text(STORAGE_CONF.format(folder=folder))
    found = Podman(
        folder,
        {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        },
    )
    try:
        found("import", "-", IMAGE, stdin=_bare_tree())
        yield found
    finally:
        found("rm", "--all", "--force", "--time", "0")
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if (point := line.split()[4]).startswith(f"{folder}/"):
                subprocess.run(["umount", point], check=True)
        shutil.rmtree(folder)
        if not cached:
            shutil.rmtree(CACHE, ignore_errors=True)


def _bare_tree() -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for name, mode in {"usr": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777, "var": 0o755}.items():
            made = tarfile.TarInfo(name)
            made.type, made.mode = tarfile.DIRTYPE, mode
            tar.addfile(made)
        for name, text in {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n"}.items():
            data = text.encode()
            file = tarfile.TarInfo(f"etc/{name}")
            file.size = len(data)
            tar.addfile(file, io.BytesIO(data))
    return written.getvalue()
