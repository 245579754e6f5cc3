"""The user's key and configuration files for SSH logins, as options of a provider and as texts in its journal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .base import Login
from .errors import BadRequest
from .given_paths import StrPath, expanded, no_file
from .option_names import shown

CONFIG = "~/.ssh/config"


def login_of(
    provider: str,
    *,
    key: StrPath | None,
    known_hosts: StrPath | Sequence[StrPath] | None,
    config: bool | StrPath,
) -> Login:
    """Return the `Login` for the options key, known_hosts and config of a provider. A ValueError names the wrong
    option.
    """
    return Login(
        keys=() if key is None else (str(expanded(key)),),
        known_hosts=known_hosts_of(known_hosts, provider),
        config=config_of(config, provider),
    )


def as_texts(login: Login) -> dict[str, str]:
    """Return a login as texts for the journal, with absolute paths. Unset fields are left out."""
    keys, config = map(os.path.abspath, login.keys), map(os.path.abspath, login.config)
    texts = {"key": "".join(keys), "known_hosts": path_list(login.known_hosts), "config": "".join(config)}
    return {name: text for name, text in texts.items() if text}


def options_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return a provider's options for a login: the reverse of `as_texts`."""
    return {
        "key": texts.get("key"),
        "known_hosts": paths_of(texts.get("known_hosts", "")) or None,
        "config": texts.get("config") or False,
    }


def no_way(to: str, error: ValueError, otherwise: str) -> BadRequest:
    """Return the error for login options that are in the journal and no longer work."""
    return BadRequest(f"The way to {to} is not there any more: {error}", advice=f"Put the file back, or {otherwise}.")


def path_list(paths: Iterable[str]) -> str:
    """Join paths, made absolute, with ":" into one text; a backslash escapes a ":" within a path."""
    return ":".join(re.sub(r"([\\:])", r"\\\1", os.path.abspath(each)) for each in paths)  # noqa: PTH100 - keeps symlinks


def paths_of(text: str) -> list[str]:
    """Return the paths in a text: the reverse of `path_list`."""
    parts = re.findall(r"(?:\\.|[^\\:])+", text)
    return [re.sub(r"\\(.)", r"\1", each) for each in parts]


def known_hosts_of(value: StrPath | Sequence[StrPath] | None, provider: str) -> tuple[str, ...]:
    """Return the known_hosts files of an option; a ValueError names the option and the provider."""
    if value is None:
        return ()
    listed = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(each, str | os.PathLike) for each in listed):
        raise ValueError(f"{provider}(known_hosts=...) takes files, not {shown(value)}")
    files = [expanded(each) for each in listed]
    for file in files:
        if why := no_file(file):
            raise ValueError(f"{provider}(known_hosts=...): {why}")
    return tuple(map(str, files))


def config_of(option: bool | StrPath, provider: str) -> tuple[str, ...]:
    """Return the configuration files to read. True: the usual file, if it exists."""
    if option is False:
        return ()
    file = expanded(CONFIG if option is True else option)
    if why := no_file(file):
        if option is True:
            return ()
        raise ValueError(f"{provider}(config=...): {why}")
    return (str(file),)
