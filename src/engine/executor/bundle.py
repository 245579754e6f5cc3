"""The executor as one file for hosts that have nothing but a python3: a zipapp, the same bytes for the same sources."""

from __future__ import annotations

import hashlib
import io
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_PACKAGE = "outrider"
_PURE = {"msgpack": ("__init__.py", "exceptions.py", "ext.py", "fallback.py"), "cloudpickle": None}
_CLIENT_SIDE = {"bundle.py", "boot.py"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say


class Bundle(NamedTuple):
    name: str  # outrider-executor-<digest>.pyz; the digest is of the contents
    data: bytes


def build() -> Bundle:
    """The executor, the wire protocol, msgpack in pure Python and cloudpickle; about 80 kB."""
    files = {"__main__.py": (Path(__file__).parent / "boot.py").read_bytes(), **_own(), **_dependencies()}
    digest = hashlib.sha256()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            digest.update(f"{name} {len(content)}\n".encode() + content)
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is built
            archive.writestr(entry, content)
    return Bundle(f"outrider-executor-{digest.hexdigest()[:16]}.pyz", whole.getvalue())


def _own() -> dict[str, bytes]:
    engine = Path(__file__).parents[1]
    files = {f"{_PACKAGE}/__init__.py": b"", f"{_PACKAGE}/engine/__init__.py": b""}
    for folder in ("wire", "executor"):
        for source in (engine / folder).glob("*.py"):
            if source.name not in _CLIENT_SIDE:
                files[f"{_PACKAGE}/engine/{folder}/{source.name}"] = source.read_bytes()
    return files


def _dependencies() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name, chosen in _PURE.items():
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{name} is not installed here, so it cannot be sent to a host")
        folder = Path(spec.origin).parent
        for source in folder.glob("*.py"):
            if chosen is None or source.name in chosen:
                files[f"{name}/{source.name}"] = source.read_bytes()
    return files
