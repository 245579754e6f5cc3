"""The hashes in a user's requirements, and checks whether a file matches one of the hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# pip's two ways to write a hash in a requirement: the option `--hash=sha256:...`, or `#sha256=...` at the end of a URL
_OPTION = re.compile(r"\s--hash(?:\s*=\s*|\s+)(\w+):([0-9a-fA-F]+)")
_FRAGMENT = re.compile(r"://\S*?[#&](sha\d+|md5)=([0-9a-fA-F]+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE = re.compile(r"[a-z+]+://\S*/([A-Za-z0-9._]+)-")


class Hash(NamedTuple):
    algorithm: str
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


def has_option(requirement: str) -> bool:
    """Return whether this line makes pip require a hash for every package."""
    return bool(_OPTION.search(requirement)) or requirement.startswith("--require-hashes")


def hashes_in(requirement: str) -> frozenset[Hash]:
    pairs = (*_OPTION.findall(requirement), *_FRAGMENT.findall(requirement))
    return frozenset(Hash(algorithm.lower(), value.lower()) for algorithm, value in pairs)


def name_of(requirement: str) -> str:
    """Return the package's name as uv writes it.

    If the requirement is a URL without a name, use the name of the file.
    """
    match = _FILE.match(requirement) or _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match[match.re.groups]).lower() if match else requirement


def hashes_by_package(requirements: Iterable[str]) -> dict[str, frozenset[Hash]]:
    """Return package name -> hashes.

    If several lines name a package, such as for different systems, their hashes are joined.
    """
    known: dict[str, frozenset[Hash]] = {}
    for line in requirements:
        if hashes := hashes_in(line):
            name = name_of(line)
            known[name] = known.get(name, frozenset()) | hashes
    return known


def has_one_of(path: Path, hashes: Iterable[Hash]) -> bool:
    """Return whether the file matches one of the hashes. The file is read once per hash algorithm."""
    digests: dict[str, str] = {}
    for wanted in hashes:
        if wanted.algorithm not in digests:
            with path.open("rb") as file:
                digests[wanted.algorithm] = hashlib.file_digest(file, wanted.algorithm).hexdigest()
        if digests[wanted.algorithm] == wanted.value:
            return True
    return False
