"""Comparison of versions, to find out whether this process and its nodes can unpickle each other's objects."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping

from ...lazy_named_tuple import NamedTuple
from ..api.errors import VersionMismatch

NOWHERE = "not installed"


class Mismatch(NamedTuple):
    """A difference in versions. ``serious``: one side cannot unpickle objects of the other."""

    what: str
    here: str
    there: str
    serious: bool
    why: str

    @property
    def row(self) -> tuple[str, str, str]:
        return self.what, self.here, self.there


def compare(here: Mapping[str, str], there: Mapping[str, str], used: Iterable[str] = ()) -> list[Mismatch]:
    """Return the differences between the versions here and on the node, serious differences first.

    Args:
        here: Versions on this side: Python, cloudpickle and packages.
        there: The versions on the node.
        used: Packages that this process has imported. A package that the node lacks matters only if it is one of these.
    """
    imported = set(used)
    mismatches = []
    for what, ours in here.items():
        theirs = there.get(what)
        if theirs == ours or (theirs is None and what not in imported):
            continue
        serious, why = _judgement(what, ours, theirs)
        if why:
            mismatches.append(Mismatch(what, ours, theirs or NOWHERE, serious, why))
    return sorted(mismatches, key=lambda mismatch: not mismatch.serious)


def used(here: Iterable[str]) -> list[str]:
    return [name for name in here if name in sys.modules]


def table(mismatches: Iterable[Mismatch]) -> str:
    rows = [("", "here", "there", ""), *((m.what, m.here, m.there, m.why) for m in mismatches)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


def version_mismatch(reason: str, here: Mapping[str, object], there: Mapping[str, object]) -> VersionMismatch:
    """Return the error for a node that refused the connection, with a table of the versions that differ."""
    both = [what for what in here if what in there and here[what] != there[what]]
    differ = [Mismatch(what, str(here[what]), str(there[what]), serious=True, why="") for what in both]
    shown = "".join(f"\n  {line}" for line in table(differ).splitlines()) if differ else ""
    message = f"A node refused the connection: {reason}. Give both sides the same versions.{shown}"
    return VersionMismatch(message, versions=[each.row for each in differ])


def _judgement(what: str, here: str, there: str | None) -> tuple[bool, str]:  # noqa: PLR0911  a table
    """Return whether the difference is serious, and the reason. An empty reason: the difference does not matter."""
    if there is None:
        return False, f"what has {what} objects in it cannot be unpickled there: add it to Image(pip=[...])"
    ours, theirs = _release(here), _release(there)
    match what:
        case "Python":
            return ours[:2] != theirs[:2], "" if ours[:2] == theirs[:2] else "functions cross as bytecode"
        case "cloudpickle":
            return True, "its pickles are for its own version"
        case "numpy" if ours[:1] != theirs[:1]:
            return True, "arrays of one major version are not understood by another"
        case "pandas" if ours[:1] != theirs[:1]:
            return True, "frames of one major version are not understood by another"
        case "numpy" | "pandas" | "torch" if ours[:2] != theirs[:2]:
            return False, "objects usually cross; results may differ"
        case _:
            return False, ""


def _release(version: str) -> tuple[int, ...]:
    """Return a version's numbers as a tuple: "2.13.0+cpu" -> (2, 13, 0)."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def package_versions(kind: str, there: str) -> tuple[tuple[str, str, str], ...]:
    """Return the package that defines the exception type ``kind``, with its version in this process and on the node."""
    package = kind.partition(".")[0] if "." in kind else "builtins"
    if package in sys.stdlib_module_names or package == "__main__":
        return (("Python", platform.python_version(), there),)
    here = getattr(sys.modules.get(package), "__version__", None) or _distribution_version(package)
    return ((package, here, there),)


def _distribution_version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    try:
        return version(packages_distributions().get(package, [package])[0])
    except (PackageNotFoundError, ValueError):  # the package name comes from a node, and may be any text
        return NOWHERE if package not in sys.modules else "without a version"
