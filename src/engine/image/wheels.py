"""Wheels for nodes that cannot reach a package index.

This computer resolves the requirements for the nodes' platform, downloads the wheels, and sends them to the nodes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import netrc
import os
import re
import tempfile
import threading
import tomllib
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ...lazy_dataclass import dataclass
from ...providers.shared.threads import in_thread
from ..api.errors import BootstrapError
from ..api.secrets import Secret, revealed
from .cache import client_cache, sha256, written
from .hints import bootstrap_error
from .outrider_archive import packed
from .requirements import Hash, Requirements, Uv, has_one_of, hashes_by_package, without_password

_PATIENCE_S = 30.0  # maximum seconds without data from a server
_TRIES = 3
_AT_ONCE = 8
_CHUNK_BYTES = 1 << 20
_MOST_SHOWN = 3  # maximum number of hashes in an error message
_WHEEL = re.compile(r"\w[\w.+!-]*\.whl")
# The newest glibc 2.x for which uv knows a platform name. Systems with a newer glibc can use the same wheels.
_NEWEST_GLIBC = 40
_uv_sha256 = cache(sha256)


class Wheel(NamedTuple):
    name: str  # the file name, which contains the package, its version and the platform
    sha256: str
    path: Path

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def read(self, offset: int, size: int) -> bytes:
        with self.path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset)


class Selection(NamedTuple):
    requirements: str  # requirements that exactly these wheels satisfy
    wheels: tuple[Wheel, ...]


class UvBinary(NamedTuple):
    path: Path  # the uv binary on this computer, for one platform
    in_cache: str  # the folder for the binary in a host's cache folder: "uv/DIGEST"


@dataclass(slots=True)
class WheelCache:
    """The wheels and uv binaries for a pool's nodes.

    They are fetched once per platform, when the first node needs them.
    """

    _selections: dict[str, Selection] = field(default_factory=dict)
    _binaries: dict[str, UvBinary] = field(default_factory=dict)
    _packed: dict[UvBinary, bytes] = field(default_factory=dict)
    _selecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _packing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def select(self, uv: Uv, wanted: Requirements, target: str, python: str) -> Selection:
        """Return the wheels that satisfy ``wanted`` for a platform and a Python version. May be cancelled at any time.

        ``target``: the platform, by uv's name. ``python``: the version.
        """
        key = f"{target} {python} {wanted.text}"
        async with self._selecting:
            if key not in self._selections:
                self._selections[key] = await _select(uv, wanted, target, python)
            return self._selections[key]

    async def uv_for(self, uv: Uv, target: str) -> UvBinary:
        """Return the uv binary for the platform ``target``: this computer's own binary, or the binary in uv's wheel."""
        async with self._packing:
            if target not in self._binaries:
                path = uv.path
                if target != here():
                    (wheel,) = (await _select(uv, Requirements(f"uv=={uv.version}\n"), target, "3.11")).wheels
                    path = await in_thread(_unpacked_uv, wheel, abandon=True)
                digest = await in_thread(_uv_sha256, path, abandon=True)
                self._binaries[target] = UvBinary(path, f"uv/{digest[:32]}")
            return self._binaries[target]

    async def packed(self, binary: UvBinary) -> bytes:
        async with self._packing:
            if binary not in self._packed:
                self._packed[binary] = await in_thread(_packed_uv, binary, abandon=True)
            return self._packed[binary]


def wheel_target(machine: str, libc: str) -> str:
    """Return the host's platform as a value for the option ``--python-platform`` of uv."""
    kind, _, version = libc.partition(" ")
    if kind != "glibc":
        return f"{machine}-unknown-linux-musl"
    return f"{machine}-manylinux_2_{min(int(version.split('.')[1]), _NEWEST_GLIBC)}"


def uv_target(machine: str, libc: str) -> str:
    """Return the platform for which to get the uv binary for a host. The binary needs only glibc 2.17."""
    return wheel_target(machine, "glibc 2.17" if libc.startswith("glibc") else libc)


def here() -> str:
    """Return this computer's platform, as `uv_target` names it. Empty if this computer does not run Linux."""
    system = os.uname()
    return uv_target(system.machine, "glibc") if system.sysname == "Linux" else ""


async def _select(uv: Uv, wanted: Requirements, target: str, python: str) -> Selection:
    secrets = [url for url in wanted.urls if isinstance(url, Secret)]
    secrets += [Secret(value) for value in wanted.variables.values() if value]
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(wanted.constraints)
        resolved = await uv.run(
            *("--quiet", "pip", "compile", "--format", "pylock.toml", "--no-header", "--no-annotate"),
            *("--python-platform", target, "--python-version", python, "--only-binary", ":all:"),
            *("--no-index",) * wanted.only_folders,
            *wanted.options,
            *(("--constraints", str(constraints)) if wanted.constraints else ()),
            "-",
            secrets=secrets,
            env=wanted.uv_environment(wanted.folders),
            stdin=wanted.text.encode(),
            cwd=Path(folder),
        )
        packages: Sequence[Mapping[str, Any]] = tomllib.loads(resolved).get("packages", ())
        fetching = _Fetching(wanted, Path(folder))
        try:
            wheels = await asyncio.gather(*map(fetching.wheel, packages))
        finally:  # otherwise threads of other downloads would keep this process alive after an error
            fetching.cancelled.set()
    pinned = [
        f"{package['name']}=={wheel.name.split('-')[1]} --hash=sha256:{wheel.sha256}\n"
        for package, wheel in zip(packages, wheels, strict=True)
    ]
    return Selection("".join(pinned), tuple(wheels))


class _Fetching:
    """Downloads the wheels of one resolution, and checks the hashes that the user gave; uv does not check them here."""

    def __init__(self, wanted: Requirements, folder: Path) -> None:
        self._wanted, self._folder = wanted, folder  # relative paths in uv's output are relative to ``folder``
        self._hashes = hashes_by_package((*wanted.text.splitlines(), *wanted.constraints.splitlines()))
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.cancelled = threading.Event()

    async def wheel(self, package: Mapping[str, Any]) -> Wheel:
        entries = package.get("wheels") or ([package["archive"]] if "archive" in package else [])
        if not entries:
            raise _refused(
                f"{package['name']} has no wheel, and a host without a way out cannot build it",
                f"build a wheel of {package['name']}, and put its folder into Image(pip_indexes=[...])",
            )
        hashes = self._hashes.get(package["name"], frozenset())
        # a version may have several wheels (builds): prefer one that matches the user's hashes
        entry = next((each for each in entries if not hashes.isdisjoint(each.get("hashes", {}).items())), entries[0])
        url = entry.get("url") or (self._folder / entry["path"]).resolve().as_uri()
        name = _named(url)
        expected = entry.get("hashes", {}).get("sha256")
        if url.startswith("file:"):
            path = Path(unquote(urlsplit(url).path))
            wheel = Wheel(name, expected or await in_thread(sha256, path, abandon=True), path)
        else:
            fetched = partial(_fetched, name, url, expected, self._wanted.urls, self.cancelled, hashes=hashes)
            async with self._slots:
                wheel = await in_thread(fetched, abandon=True)
        await in_thread(_compare, package["name"], wheel, hashes, self._wanted, abandon=True)
        return wheel


def _compare(package: str, wheel: Wheel, hashes: frozenset[Hash], wanted: Requirements) -> None:
    """Raise an error if the wheel matches none of the ``hashes`` that the user gave for the package."""
    if not hashes and wanted.all_hashed and wheel.sha256 not in wanted.wheels:
        raise _refused(
            f"{package} ({wheel.name}) has no hash, and other requirements of the image have",
            "write all packages with == and their hashes (`uv pip compile --generate-hashes`), or give Image(lock=...)",
        )
    if hashes and Hash("sha256", wheel.sha256) not in hashes and not has_one_of(wheel.path, hashes):
        right = [wanted.locked[wheel.name]] if wheel.name in wanted.locked else sorted(map(str, hashes))
        shown = " or ".join(right[:_MOST_SHOWN]) + (f" or one of {len(right)}" if len(right) > _MOST_SHOWN else "")
        raise _refused(
            f"{wheel.name}, found for {package}, has the hash sha256:{wheel.sha256}, but the image's lock or "
            f"requirements have {shown} for it",
            f"if the file comes from the wrong index, name the right one, Image(pip_indexes=[...]); if {package} was "
            "meant to change, lock it again; otherwise somebody has put another file in its place, which could do "
            "anything on your nodes",
        )


def _named(url: str) -> str:
    """Return the file name in a URL.

    It must be a valid name of a wheel without special characters, because it is used in paths here and on the nodes.
    """
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    if not _WHEEL.fullmatch(name):
        raise _refused(
            f"{name!r} (of {without_password(url)}) is not the name of a wheel",
            "check the index, or the requirement that names this file",
        )
    return name


def _fetched(
    name: str,
    url: str,
    expected: str | None,
    indexes: Sequence[str | Secret],
    cancelled: threading.Event,
    *,
    hashes: frozenset[Hash] = frozenset(),
) -> Wheel:
    """Return a wheel from the cache, or download it into the cache, and check its hash.

    ``expected``: the wheel's SHA-256 from the index. If the index gives none, a wheel in the cache is used only if it
    matches one of the user's ``hashes``, or if the user gave none.
    """
    store = client_cache() / "wheels"
    key = expected or hashlib.sha256(url.encode()).hexdigest()
    path = store / key / name
    is_kept = path.exists() and (
        sha256(path) == expected if expected is not None else not hashes or has_one_of(path, hashes)
    )
    if not is_kept:
        try:
            with written(path) as beside:
                _download(url, beside, indexes, cancelled)
                if expected is not None and sha256(beside) != expected:
                    raise OSError("it is not the file that the index says it is")
        except (OSError, http.client.HTTPException) as error:  # OSError includes URLError
            raise _refused(
                f"{without_password(url)} could not be fetched to this computer: {getattr(error, 'reason', error)}",
                "check this computer's network, or name a local folder of wheels in Image(pip_indexes=[...])",
            ) from error
    return Wheel(name, expected or sha256(path), path)


def _download(url: str, target: Path, indexes: Sequence[str | Secret], cancelled: threading.Event) -> None:
    for left in reversed(range(_TRIES)):
        try:
            _downloaded(url, target, indexes, cancelled)
        except (OSError, http.client.HTTPException):
            if not left or cancelled.is_set():
                raise
        else:
            return


def _downloaded(url: str, target: Path, indexes: Sequence[str | Secret], cancelled: threading.Event) -> None:
    request = urllib.request.Request(without_password(url))  # noqa: S310 - the URL is from an index, and no file URL
    if password := _credentials(url, indexes):
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(password.encode()).decode())
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer, target.open("wb") as file:  # noqa: S310
        while data := answer.read1(_CHUNK_BYTES):
            if cancelled.is_set():
                raise InterruptedError("nobody waits for it any more")
            file.write(data)
        if missing := getattr(answer, "length", 0):
            raise OSError(f"{missing} bytes of it are missing")


def _credentials(url: str, indexes: Sequence[str | Secret]) -> str:
    """Return ``user:password`` for downloading a file: from its URL, from an index on the same host, or from ~/.netrc.

    Over http, others on the network could read the password. So it is sent only if the user named an http URL on that
    host.
    """
    host = urlsplit(url).netloc.rpartition("@")[2]
    is_plain = urlsplit(url).scheme != "https"
    there = [each for each in map(urlsplit, map(revealed, indexes)) if each.netloc.rpartition("@")[2] == host]
    for known in (urlsplit(url), *there):
        login = known.netloc.rpartition("@")[0]
        if login and (known.scheme == "http" or not is_plain):
            return unquote(login)
    if is_plain and not any(each.scheme == "http" for each in there):
        return ""
    try:
        entry = netrc.netrc().authenticators(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return ""
    return f"{entry[0]}:{entry[2]}" if entry else ""


def _refused(reason: str, hint: str) -> BootstrapError:
    return bootstrap_error("packages", reason, hint=hint, systematic=True)


def _unpacked_uv(wheel: Wheel) -> Path:
    target = wheel.path.with_name("uv")
    if not target.exists():
        with zipfile.ZipFile(wheel.path) as archive, written(target) as beside:
            (member,) = (name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            beside.write_bytes(archive.read(member))
    return target


def _packed_uv(binary: UvBinary) -> bytes:
    """Return the uv binary as a tar.gz, the form in which hosts receive it.

    The tar.gz is stored in the cache, because compressing takes seconds.
    """
    kept = client_cache() / f"{binary.in_cache}.tar.gz"
    if not kept.exists():
        with written(kept) as beside:
            beside.write_bytes(packed({"uv": binary.path.read_bytes()}, mode=0o755))
    return kept.read_bytes()
