"""The node's Python environments, one per digest.

uv creates an environment beside its final place. It is then renamed, and never changed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import files
from .installation import Failed, Installation, try_lock
from .protocol import Inbox

_REACH_S = 4.0  # seconds to connect to an index: enough for two TCP retries, after 1 and 3 s
_POLL_S = 0.2
# Code that prints, in a virtual environment, whether it sees the packages of its base interpreter, and its own package
# folders.
_VENV = """
import sys, sysconfig
if sys.prefix != sys.base_prefix:
    settings = open(sys.prefix + "/pyvenv.cfg", encoding="utf-8").read().lower()
    print("include-system-site-packages = true" in settings)
    print(*dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib"))), sep="\\n")
"""
_OF_VENV = "outrider-venv.pth"  # name of a file that Python's `site` reads


def prepare(installation: Installation, inbox: Inbox, cache: Path, wanted: Mapping[str, Any]) -> Path:
    """Create the environment unless it exists. Return its interpreter. ``wanted``: see `install_plan.environment`."""
    place: Path = cache / "envs" / wanted["digest"]
    python = place / "bin" / "python"
    if _works(python):
        return python
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "wb") as lock:
        if not try_lock(lock.fileno()):
            installation.line("another pool is making this environment: waiting for it")
            while not try_lock(lock.fileno()):
                time.sleep(_POLL_S)
        if _works(python):  # another pool has created it in the meantime
            return python
        beside = place.with_suffix(".new")
        for leftover in (beside, place):  # left by a killed installer, or based on a Python that was removed
            shutil.rmtree(leftover, ignore_errors=True)
        umask = os.umask(0o077)  # keep the files private, as later pools run them; tasks keep the login's umask
        try:
            with installation.incomplete(beside):
                _make(installation, inbox, cache, wanted, beside)
                beside.rename(place)
        finally:
            os.umask(umask)
    return python


def _works(python: Path) -> bool:
    return os.access(python, os.X_OK)  # this follows the symlink, whose target may have been removed


def _make(installation: Installation, inbox: Inbox, cache: Path, wanted: Mapping[str, Any], place: Path) -> None:
    uv = _Uv(installation, cache, wanted)
    with installation.during("python", wanted["python"]):
        sees_system, folders = (False, []) if wanted["isolated"] else _seen_by(wanted["python"])
        system = ["--system-site-packages"] if sees_system else []
        uv.run("venv", "--no-project", "--relocatable", *system, "--python", wanted["python"], str(place))
        if folders:
            _show(folders, place)
    if not wanted["requirements"]:
        return
    scratch = place.with_suffix(".wheels")
    with installation.during("packages"), installation.incomplete(scratch):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        requirements, sources = wanted["requirements"], []
        offline = wanted["offline"]
        if offline is None and not uv.has_way_out():
            installation.line("this host does not reach the package index: packages come from the client")
            offline = True
        if offline:
            requirements = _fetch(installation, inbox, cache / "files", scratch)
            sources = ["--offline", "--no-index"]
        elif wanted["constraints"]:
            (scratch / "constraints.txt").write_text(wanted["constraints"])
            sources = ["--constraints", "constraints.txt"]
        install = ("pip", "install", "--python", str(place / "bin" / "python"), *sources, *wanted["install"])
        folder = scratch if offline else None
        uv.run(*install, "--requirements", "-", stdin=requirements.encode(), cwd=scratch, folder=folder)


def _seen_by(python: str) -> tuple[bool, list[str]]:
    """Return whether an interpreter sees its installation's packages, and the package folders of its virtual
    environment.

    Without a virtual environment, there are no such folders. An environment created from a virtual environment is based
    on the underlying installation, and would not see these folders.
    """
    result = subprocess.run(  # noqa: S603 - the image's interpreter
        [python, "-I", "-c", _VENV], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    sees_system, *folders = result.stdout.splitlines() or ["True"]
    return sees_system == "True", folders


def _show(folders: Sequence[str], place: Path) -> None:
    """Append the folders to the environment's search path, after its own packages."""
    [packages] = place.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
    (packages / _OF_VENV).write_text("".join(lines), encoding="utf-8")


def _fetch(installation: Installation, inbox: Inbox, store: Path, folder: Path) -> str:
    """Request the missing wheels from the client. Return requirements that install them from ``folder``."""
    installation.send("need", wheels=True)
    answer = inbox.next()
    wheels: Sequence[Sequence[Any]] = answer["wheels"]
    files.receive(installation, inbox, store, {digest: size for _, digest, size in wheels})
    for name, digest, _ in wheels:
        source = store / digest
        try:
            os.link(source, folder / name)
        except OSError:  # the store is on another file system
            (folder / name).symlink_to(source)
        os.utime(source)
    return str(answer["requirements"])


class _Uv:
    """The uv binary. Its indexes are passed in environment variables, as arguments would show their passwords."""

    def __init__(self, installation: Installation, cache: Path, wanted: Mapping[str, Any]) -> None:
        self._installation, self._wanted = installation, wanted
        self._binary = str(cache / wanted["uv"])
        self._base = {
            "UV_HTTP_TIMEOUT": "30",
            **os.environ,
            "NO_COLOR": "1",
            "UV_CACHE_DIR": str(cache / "uv-cache"),
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_INSTALL_DIR": str(cache / "pythons"),
        }
        self._online = {**self._base, **wanted["uv_env"]}

    def run(
        self, *arguments: str, stdin: bytes = b"", cwd: Path | None = None, folder: Path | None = None
    ) -> list[str]:
        """Run uv and return its output. ``folder``: use only the wheels in this folder."""
        env = self._online if folder is None else {**self._base, "UV_FIND_LINKS": str(folder)}
        shown = f"uv {' '.join(arguments)}"
        return self._installation.run([self._binary, *arguments], env=env, cwd=cwd, stdin=stdin, shown=shown)

    def has_way_out(self) -> bool:
        """Return whether an index or a proxy can be reached. uv is asked for its default index, as only uv knows it."""
        if any(self._online.get(name) for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")):
            return True
        indexes = list(self._wanted["indexes"])
        ask = ("--quiet", "pip", "compile", "--no-header", "--emit-index-url", "-")
        with suppress(Failed):
            lines = self.run(*ask, stdin=b"\n", cwd=Path("/"))
            indexes += [line.split(" ", 1)[1] for line in lines if "index-url " in line]
        return any(map(_is_reachable, indexes))


def _is_reachable(index: str) -> bool:
    url = urlsplit(index)
    if url.scheme == "file" or not url.hostname:
        return url.scheme == "file" and Path(url.path).is_dir()
    try:
        socket.create_connection((url.hostname, url.port or (80 if url.scheme == "http" else 443)), _REACH_S).close()
    except OSError:
        return False
    return True
