"""Checks of a path at which a volume is mounted. No I/O, so they work on the client and again on the host."""

from __future__ import annotations

from collections.abc import Sequence

# ruff: noqa: S108 - nothing is written there
# All folders below _TREES belong to the system. The folders in _FOLDERS are shared by many programs.
_TREES = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
_FOLDERS = ("/", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/lib", "/var/log", "/var/tmp")


def objection(path: str) -> str:
    """Return the reason why no volume can be mounted at ``path``; "": it can.

    The reason is the end of a sentence that begins with the path.
    """
    if not path.startswith("/"):
        return "is not absolute: tasks have folders of their own to work in"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        return "has a control character in it"
    parts = path.split("/")[1:]
    if path != "/" and ("" in parts or "." in parts or ".." in parts):
        return "is not written plainly: leave out '.', '..' and slashes that say nothing"
    if path in _FOLDERS or (len(parts) == 2 and parts[0] == "home"):
        return "is a folder that the system needs: take one of its own, as in mount='/data'"
    if any(is_in(path, tree) for tree in _TREES):
        return "is among the system's own folders: take another, as in mount='/data'"
    return ""


def is_in(path: str, folder: str) -> bool:
    """Return whether ``path`` is ``folder`` or below it. Both are absolute and normalised."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def overlap(paths: Sequence[str]) -> tuple[str, str] | None:
    """Return (upper, lower) of two ``paths``, if a mount at upper would hide the one at lower; None: no such paths."""
    ordered = sorted(paths, key=lambda path: path.split("/"))
    for upper, lower in zip(ordered, ordered[1:]):  # noqa: B905, RUF007 - Python 3.8 has neither
        if is_in(lower, upper):
            return upper, lower
    return None
