"""Outrider's code as an archive for a host that has only Python. The same sources always give the same bytes.

On the host, the archive is unpacked into a folder named by the archive's digest. Its ``__main__.py`` is the file
``engine/node/boot.py``. The archive contains the Outrider package as installed here, cloudpickle, and msgpack in pure
Python. msgpack is in a separate folder that is searched last, so that a compiled msgpack of the host is preferred.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_PACKAGE = "outrider"
# Left out because no task imports them: the `outrider` command, its reports and web pages, the simulator, and the
# clouds for tests.
_AT_THE_CLIENT = (
    "engine/cli/*",
    "engine/record/profiles.py",
    "engine/record/report/*",
    "engine/record/ui/*",
    "testing/clouds/*",
    "testing/simulator/*",
)
_AT_NODES = ("engine/cli/__init__.py", "engine/cli/log.py")  # for scripts of tasks: `python -m outrider log`
_PURE = ("__init__.py", "exceptions.py", "ext.py", "fallback.py")


class OutriderArchive(NamedTuple):
    digest: str  # a hash of the files' names and contents
    data: bytes  # the archive, a tar.gz


@cache
def build() -> OutriderArchive:
    """Return the archive (about 1 MB). The first call in a process builds it, in 0.2 s."""
    files = {
        "__main__.py": (Path(__file__).parents[1] / "node" / "boot.py").read_bytes(),
        **_sources(Path(__file__).parents[2], _PACKAGE),
        **_sources(_folder_of("cloudpickle"), "cloudpickle"),
        **{f"pure/msgpack/{name}": (_folder_of("msgpack") / name).read_bytes() for name in _PURE},
        **_metadata(),
    }
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return OutriderArchive(digest.hexdigest()[:32], packed(files))


def packed(files: dict[str, bytes], *, mode: int = 0o644) -> bytes:
    """Return a tar.gz of these files with the same bytes on every machine: without times, users and local paths."""
    whole = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=whole, mode="wb", compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def _sources(folder: Path, package: str) -> dict[str, bytes]:
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    return {
        f"{package}/{name}": path.read_bytes()
        for name, path in paths.items()
        if "__pycache__" not in path.parts
        and (name in _AT_NODES or not any(fnmatch(name, each) for each in _AT_THE_CLIENT))
    }


def _metadata() -> dict[str, bytes]:
    """Return the files of the package's metadata: its version, and the entry points by which plugins are found."""
    try:
        installed = distribution(_PACKAGE)
    except PackageNotFoundError:  # Outrider is not installed but runs from its source folder
        return {}
    folder = f"{_PACKAGE}-{installed.version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: {installed.version}\n"
    files = {f"{folder}/METADATA": head.encode()}
    if (points := installed.read_text("entry_points.txt")) is not None:
        files[f"{folder}/entry_points.txt"] = points.encode()
    return files


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{package} is not installed here, so it cannot be sent to a host")
    return Path(spec.origin).parent
