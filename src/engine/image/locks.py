"""Conversion of a uv.lock or pylock.toml to requirements that only the locked files satisfy.

If that is not possible, an error is raised.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ..api.errors import SpecError

Package = Mapping[str, Any]  # the entry of one package in a lock file


class Lock(NamedTuple):
    requirements: tuple[str, ...]
    indexes: tuple[str, ...]  # URLs of the package indexes that the lock file names
    hashes: Mapping[str, str]  # file name -> hash of the file
    all_hashed: bool  # False: some packages have a git commit instead of a hash


def parse(path: Path, pylock: str, *, uv_lock: str = "") -> Lock:
    """Parse a pylock.toml. ``uv_lock``: the text of the uv.lock from which the pylock.toml was created; empty: none.

    Raises:
        SpecError: the lock file cannot be read, or does not determine exactly which files are installed.
    """
    try:
        packages: Sequence[Package] = tomllib.loads(pylock).get("packages", ())
        unfixed = _without_hash(tomllib.loads(uv_lock).get("package", ()))
        for package in packages:
            if (package["name"], package.get("version")) in unfixed or not _is_fixed(package):
                raise SpecError(
                    f"Image(lock=...): {path} has no hash for a file of {package['name']}, so that another file could "
                    "be installed. Lock from an index that names the hashes of its files, or use requirements=."
                )
        requirements = tuple(map(_exactly, packages))
        indexes = dict.fromkeys(str(package["index"]) for package in packages if "index" in package)
        hashes = {_name(file): _hashes(file)[0] for package in packages for file in _files(package)}
    except (tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError) as error:
        raise SpecError(f"Image(lock=...): {path} is not a lock that can be read: {error}. Lock again.") from error
    return Lock(requirements, tuple(indexes), hashes, not any("vcs" in package for package in packages))


def _without_hash(packages: Sequence[Package]) -> set[tuple[str, str]]:
    """Return (name, version) of the packages in a uv.lock that have a file without a hash.

    For these files, uv would accept the hash that the index has now.
    """
    return {
        (package["name"], package.get("version", ""))
        for package in packages
        if any("url" in file and "hash" not in file for file in _files(package))
    }


def _is_fixed(package: Package) -> bool:
    return all(map(_hashes, _files(package))) if _files(package) else "vcs" in package or "directory" in package


def _files(package: Package) -> list[Package]:
    if "archive" in package:
        return [package["archive"]]
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]


def _hashes(file: Package) -> list[str]:
    return [f"{algorithm}:{value}" for algorithm, value in file.get("hashes", {}).items()]


def _name(file: Package) -> str:
    """Return the file's name. Some lock files contain it only as part of the URL or path."""
    place = file.get("url") or file.get("path") or ""
    return str(file.get("name") or unquote(urlsplit(place).path.rpartition("/")[2]))


def _exactly(package: Package) -> str:
    name = package["name"]
    marker = f" ; {package['marker']}" if "marker" in package else ""
    if "vcs" in package:
        source = package["vcs"]
        return f"{name} @ {source['type']}+{source['url']}@{source['commit-id']}{marker}"
    if "directory" in package or "version" not in package:
        raise SpecError(
            f"Image(lock=...): {name} is locked to a folder or file of its own: send it by includes=, or as a wheel."
        )
    url = package.get("archive", {}).get("url")
    exact = f"{name} @ {url}" if url else f"{name}=={package['version']}"
    return exact + marker + "".join(f" --hash={each}" for file in _files(package) for each in _hashes(file))
