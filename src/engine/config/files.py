"""Search and parsing of the configuration file, which defines named pools.

The file is ``outrider.toml``, or the table ``[tool.outrider]`` of a ``pyproject.toml``.
"""

from __future__ import annotations

import os
import shlex
import stat
import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Literal, NoReturn

from ...lazy_dataclass import dataclass
from ...providers.shared.option_names import closest
from ...providers.shared.paths import only_one_is_in_group
from ..api.checks import check_known, refuse, shown
from ..api.errors import SpecError
from ..api.settings import Spec
from ..pool_options import PoolOptions
from .tables import POOL_KEYS, RUN_KEYS, Table, at, pool_options, tracker_at, with_tables

OWN, SHARED = "outrider.toml", "pyproject.toml"
DEFAULT = "default"  # the pool that is used if a program names no pool


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that was parsed. ``pools``: name -> table of the pool, with absolute paths."""

    path: Path
    prefix: str  # text before the names of the file's tables: "tool.outrider." in a pyproject.toml, otherwise ""
    pools: Mapping[str, Table]
    trackers: Mapping[str, Table]  # name that pools use for the tracker -> its table

    def where(self, name: str, of: Literal["pools", "trackers"] = "pools") -> str:
        return f"{self.path} [{self.prefix}{of}.{name}]"

    def pool(self, name: str) -> Table:
        """Return the table of the pool ``name``.

        Raises:
            SpecError: The file has no pool of this name.
        """
        if name not in self.pools:
            close = closest(name, self.pools)
            others = f"it has {', '.join(sorted(self.pools))}" if self.pools else "it names none"
            refuse(f"{self.path} has no pool {name!r}: " + (f"did you mean {close!r}?" if close else f"{others}."))
        return self.pools[name]


def find(start: Path) -> ConfigFile | None:
    """Return the configuration file for programs that run in the folder ``start``; None: there is none.

    It is the nearest file, in that folder or in a folder above it. In one folder, ``outrider.toml`` takes precedence.
    """
    for folder in (start, *start.parents):
        if _is_file(own := folder / OWN):
            _check_owner(own)
            return read(own)
        if _is_file(shared := folder / SHARED) and "outrider" in _table(_parsed(shared), "tool", str(shared)):
            _check_owner(shared)
            return read(shared)
    return None


def _is_file(path: Path) -> bool:
    """Return whether ``path`` is a file that the user may see.

    Folders above the working directory may belong to other users, so errors of access count as False.
    """
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises a PermissionError


def _check_owner(file: Path) -> None:
    """Raise an error if another user may have written a file that was found by search.

    This can happen in a shared folder such as /tmp. The file determines which machines get the program's files and
    secrets.
    """
    status, users = file.stat(), (os.geteuid(), 0)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in users:
        why, mend = f"it belongs to uid {status.st_uid}", "take it for your own by chown"
    elif mode & stat.S_IWOTH:
        why, mend = f"others may write in it (mode {mode:o})", f"run chmod go-w {shlex.quote(str(file))}"
    elif mode & stat.S_IWGRP and not any(only_one_is_in_group(status.st_gid, uid) for uid in users):
        why = f"the group {_group_name(status.st_gid)} may write in it (mode {mode:o})"
        mend = f"run chmod g-w {shlex.quote(str(file))}"
    else:
        return
    refuse(
        f"{file} would decide where your program and its secrets go, and {why}: {mend}, remove it, or name a file with "
        "file=."
    )


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def read(path: str | os.PathLike[str]) -> ConfigFile:
    """Read an ``outrider.toml`` or a ``pyproject.toml``.

    Raises:
        SpecError: The file cannot be read, is not TOML, or has unknown keys.
    """
    if not isinstance(path, str | os.PathLike):
        refuse(f"the file of pools is a path, not {shown(path)}.")
    file = Path(path).absolute()
    whole, prefix = _parsed(file), ""
    if file.name == SHARED:
        whole, prefix = _table(_table(whole, "tool", str(file)), "outrider", f"{file} [tool]"), "tool.outrider."
    for key in whole.keys() - {"pools", "trackers"}:
        _refuse_key(f"{file}" + (" [tool.outrider]" if prefix else ""), key, whole[key], prefix)
    pools, trackers = _table(whole, "pools", str(file)), _table(whole, "trackers", str(file))
    written = {name: _table(trackers, name, f"{file} [{prefix}trackers]") for name in trackers}
    known = {name: tracker_at(table, file.parent) for name, table in written.items()}
    tables = {name: at(_table(pools, name, f"{file} [{prefix}pools]"), file.parent) for name in pools}
    for table in tables.values():
        if "trackers" in table:
            table["trackers"] = with_tables(table["trackers"], known)
    return ConfigFile(file, prefix, tables, known)


def _parsed(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}.") from None
    # the file cannot be read, is not UTF-8, or is nested too deeply
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _table(table: Table, key: str, where: str) -> Table:
    inner = table.get(key, {})
    if not isinstance(inner, Mapping):
        of_pool = f": keys of a pool stand below a line such as {where.rpartition(' ')[2][:-1]}.default]"
        refuse(f"{where}: {key} is a table, not {inner!r:.60}{of_pool if key in POOL_KEYS else ''}.")
    return inner


def _refuse_key(where: str, key: str, value: object, prefix: str) -> NoReturn:
    """Raise an error for a key that is not in a table of a pool or tracker. The error names the right place for it."""
    if isinstance(value, Mapping):
        inner = (
            [*value]
            if closest(key, ("pools", "trackers")) and all(isinstance(each, Mapping) for each in value.values())
            else []
        )
        kind = closest(key, ("pools", "trackers")) or "pools"
        names = ", ".join(f"[{prefix}{kind}.{each}]" for each in inner or [key])
        refuse(f"{where} has no table [{prefix}{key}]: write {names}.")
    if key in POOL_KEYS | RUN_KEYS:
        refuse(f"{where}: {key} belongs to a pool: write it below [{prefix}pools.{DEFAULT}].")
    check_known(where, [key], ("pools", "trackers"))
    raise AssertionError(key)


def pool_of(
    name: str, file: str | os.PathLike[str] | None, *, besides: Container[str]
) -> tuple[tuple[Spec, ...], PoolOptions, str]:
    """Return the specs and options of a pool in a configuration file, and the name of its table for errors.

    Args:
        name: The name of the pool.
        file: The configuration file; None: search from the working directory.
        besides: Names of options to leave out.

    Raises:
        SpecError: There is no file, or the file has a value that is not valid.
    """
    if not isinstance(name, str):
        refuse(f"Pool.from_config takes the name of a pool in the file, not {shown(name)}.")
    config = find(Path.cwd()) if file is None else read(file)
    if config is None:
        refuse(
            f"There is no {OWN}, and no {SHARED} with [tool.outrider], in {Path.cwd()} or above: write [pools.{name}]."
        )
    where = config.where(name)
    table = {key: value for key, value in config.pool(name).items() if key not in besides and key not in RUN_KEYS}
    return *pool_options(table, where), where
