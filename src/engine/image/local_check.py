"""Check of an image against this computer, for the provider `Local`.

It installs nothing, so all must be there already.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from os.path import realpath

from packaging.requirements import InvalidRequirement, Requirement

from ..api.checks import refuse
from ..api.image import Image
from .requirements import Collected

_NOT_HERE = ("lock", "run")  # settings of an image that cannot be checked, or would change this computer
_HASHES = re.compile(r"\s+--hash.*", re.DOTALL)
_DPKG_S = 10.0


def refuse_what_is_lacking(image: Image) -> None:
    """Raise an error if this computer lacks packages that the image needs.

    Python packages are looked up in this process's Python, Debian packages on this computer.

    Raises:
        SpecError: the error names all missing packages, and the commands that install them.
    """
    if settings := [f"{name}=" for name in _NOT_HERE if getattr(image, name)]:
        refuse(
            f"Image({', '.join(settings)}): tasks of Local() run in this program's own environment, where nothing is "
            "installed and no command is run for a pool. Leave it out; pip=, requirements= and apt= are looked up here."
        )
    if not _is_ours(image.python):
        refuse(
            f"Image(python={image.python!r}): tasks of Local() run on this program's own Python, {sys.executable}, "
            f"which is {platform.python_version()}: run this program with the other, or leave python out."
        )
    packages = dict(_lacking_packages(image))
    debian = list(_lacking_debian_packages(image))
    if not packages and not debian:
        return
    commands = [["pip", "install", *packages]] if packages else []
    commands += [["sudo", "apt-get", "install", *debian]] if debian else []
    refuse(
        "Image: tasks of Local() run in this program's own environment, where nothing is installed for a pool, and it "
        f"lacks {', '.join([*packages.values(), *debian])}. Run `{'` and `'.join(map(shlex.join, commands))}`, or "
        "leave out what your tasks do not need here."
    )


def _is_ours(python: str) -> bool:
    if python.startswith("/"):
        return realpath(python) == realpath(sys.executable)
    return python == "auto" or python.count(".") < 2 or python == platform.python_version()


def _lacking_packages(image: Image) -> Iterator[tuple[str, str]]:
    """Yield the Python packages that are missing: the requirement in pip's format, and a text for users."""
    collected = Collected(image)
    for line in collected.lines:
        yield from _unmet(_HASHES.sub("", line))
    for line in collected.constraints:
        yield from ((line, has) for line, has in _unmet(_HASHES.sub("", line)) if line != has)


def _unmet(line: str, extra: str = "") -> Iterator[tuple[str, str]]:
    """Yield the requirement if it is not satisfied. Options, and URLs without a package name, are not checked."""
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        return
    requirement = str(wanted).partition(";")[0].strip()
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        yield requirement, requirement
        return
    if not wanted.specifier.contains(version, prereleases=True):
        yield requirement, f"{requirement} ({version} is here)"
        return
    for name in wanted.extras:
        for each in metadata.requires(wanted.name) or ():
            if "extra" in each.partition(";")[2]:
                yield from _unmet(each, name)


def _lacking_debian_packages(image: Image) -> Iterator[str]:
    """Yield the Debian packages that are not installed. If this computer has no dpkg, yield none."""
    program = shutil.which("dpkg-query")
    for requirement in image.apt if program is not None else ():
        name, sign, version = re.fullmatch(r"([^=/]+)([=/]?)(.*)", requirement).groups()  # type: ignore[union-attr]
        shown = subprocess.run(  # noqa: S603  Debian's dpkg-query
            [str(program), "--show", "--showformat", "${db:Status-Status} ${Version}\n", "--", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=_DPKG_S,
        ).stdout
        here = [line.partition(" ")[2] for line in shown.splitlines() if line.startswith("installed ")]
        if not here or (sign == "=" and version not in here):
            yield requirement
