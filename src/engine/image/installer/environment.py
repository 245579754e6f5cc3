"""The files and packages of tasks on a node: the user's included files, and the virtual environment.

Included files are stored once by content, and copied to a new folder for each pool. A node has one virtual environment
for each digest of the parameters. uv creates an environment under a temporary name. The environment is then renamed,
and never changed afterwards.
"""

from __future__ import annotations

import hashlib
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

from .installation import Failed, Installation, try_lock
from .protocol import Inbox

_CHUNK_BYTES = 1 << 20
_KEPT_S = 30 * 86400  # seconds (30 days) after which an unused file is deleted


def receive_files(installation: Installation, inbox: Inbox, store: Path, wanted: Mapping[str, int]) -> None:
    """Make sure that the folder ``store`` has all ``wanted`` files: SHA-256 -> size.

    The client sends those that are missing.
    """
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = [name for name, size in wanted.items() if not _has(store / name, size)]
    if not missing:
        return
    inbox.folder = store
    installation.send("need", files=missing)
    left = set(missing)
    while left:
        left.discard(inbox.next().get("sha256", ""))
    size = sum(wanted[name] for name in missing)
    installation.line(f"received {len(missing)} of {len(wanted)} files, {_in_words(size)}")


def lay_out_files(tree: Path, store: Path, entries: Sequence[Sequence[Any]]) -> None:
    """Create the folder ``tree`` with exactly the given files.

    The folder is created under another name and then renamed, so it is never incomplete. ``entries``: (path, SHA-256,
    size, whether the file is executable).
    """
    beside = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700)
    now = time.time()
    for path, name, _, executable in entries:
        target, source = beside / path, store / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)  # a copy and not a link, because a task may write to the file
        if executable:
            target.chmod(0o755)
        os.utime(source, (now, now))
    shutil.rmtree(tree, ignore_errors=True)
    beside.rename(tree)


def forget_files(store: Path) -> None:
    """Delete stored files that were not used for a long time, and incomplete files of killed installers."""
    limit = time.time() - _KEPT_S
    with suppress(OSError), os.scandir(store) as entries:
        for entry in entries:
            if entry.stat().st_mtime < limit:
                Path(entry.path).unlink()


def _has(path: Path, size: int) -> bool:
    """Return whether the file exists and has the content that its name (a SHA-256) states.

    After a power failure, the file may be incomplete.
    """
    try:
        return path.stat().st_size == size and _sha256(path) == path.name
    except OSError:
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _in_words(size: int) -> str:
    if size < 10_000:
        return f"{size} bytes"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size // 1000} kB"


_REACH_S = 4.0  # seconds to connect to a package index: enough for two repeated TCP packets, after 1 and 3 s
_POLL_S = 0.2
# Code to run in the Python of a virtual environment. It prints whether the environment sees the packages of the Python
# on which it is based, and the environment's own package folders.
_VENV = """
import sys, sysconfig
if sys.prefix != sys.base_prefix:
    settings = open(sys.prefix + "/pyvenv.cfg", encoding="utf-8").read().lower()
    print("include-system-site-packages = true" in settings)
    print(*dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib"))), sep="\\n")
"""
_OF_VENV = "outrider-venv.pth"  # a .pth file, which Python reads at its start


def prepare_environment(installation: Installation, inbox: Inbox, cache: Path, wanted: Mapping[str, Any]) -> Path:
    """Create the virtual environment if it does not exist. Return its interpreter.

    ``wanted``: the parameters from `install_plan.environment`.
    """
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
        if _works(python):  # another pool has created the environment while this process waited for the lock
            return python
        beside = place.with_suffix(".new")
        # an unfinished environment of a killed installer, or one whose Python was removed
        for leftover in (beside, place):
            shutil.rmtree(leftover, ignore_errors=True)
        # only this user may write the files, because later pools run them; tasks get the login's umask
        umask = os.umask(0o077)
        try:
            with installation.incomplete(beside):
                _make(installation, inbox, cache, wanted, beside)
                beside.rename(place)
        finally:
            os.umask(umask)
    return python


def _works(python: Path) -> bool:
    return os.access(python, os.X_OK)  # follows the symlink: the Python to which it leads may have been removed


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
    """Return from where an interpreter imports packages. The interpreter may be in a virtual environment.

    A new environment that is created with the interpreter of a virtual environment is based on the Python installation
    behind it, and would not see the packages of that virtual environment.

    Returns:
        Whether the interpreter sees the packages of the Python installation, and the package folders of its virtual
        environment (empty if it is in none).
    """
    result = subprocess.run(  # noqa: S603 - the image's interpreter
        [python, "-I", "-c", _VENV], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    sees_system, *folders = result.stdout.splitlines() or ["True"]
    return sees_system == "True", folders


def _show(folders: Sequence[str], place: Path) -> None:
    """Append these package folders to the search path of the environment at ``place``, after its own packages."""
    [packages] = place.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
    (packages / _OF_VENV).write_text("".join(lines), encoding="utf-8")


def _fetch(installation: Installation, inbox: Inbox, store: Path, folder: Path) -> str:
    """Get the missing wheels from the client, and put all wheels into ``folder``.

    Return requirements for installing them.
    """
    installation.send("need", wheels=True)
    answer = inbox.next()
    wheels: Sequence[Sequence[Any]] = answer["wheels"]
    receive_files(installation, inbox, store, {digest: size for _, digest, size in wheels})
    for name, digest, _ in wheels:
        source = store / digest
        try:
            os.link(source, folder / name)
        except OSError:  # hard links are impossible between file systems
            (folder / name).symlink_to(source)
        os.utime(source)
    return str(answer["requirements"])


class _Uv:
    """Runs uv.

    The package indexes are passed in environment variables, because arguments would show their passwords.
    """

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
        """Run uv, and return the lines of its output. ``folder``: use only the wheels in this folder."""
        env = self._online if folder is None else {**self._base, "UV_FIND_LINKS": str(folder)}
        shown = f"uv {' '.join(arguments)}"
        return self._installation.run([self._binary, *arguments], env=env, cwd=cwd, stdin=stdin, shown=shown)

    def has_way_out(self) -> bool:
        """Return whether the host can reach a package index, or uses a proxy.

        The default index is taken from uv's output, because only uv knows it.
        """
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
