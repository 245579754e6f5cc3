"""Options of providers that log in to the user's own hosts: key files, SSH configuration, and options of a command.

`SSH`, `Slurm` and `Containers` use this module. `login_of` checks the options ``key``, ``known_hosts`` and ``config``;
`as_texts` and `options_of` convert them for the journal (the local database of what pools create). `key_objection`
recognizes by its first bytes whether a file is a usable private key, so that a wrong file fails before any connection.
`long_options` checks options that are passed through to a command, such as ``{"shm-size": "16g"}`` for `docker run`.
"""

from __future__ import annotations

import binascii
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base import Login
from ..errors import BadRequest
from .option_names import shown
from .paths import StrPath, expanded, no_file

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


# --- private keys -----------------------------------------------------------------------------------------------------


READ_BYTES = 64 << 10  # bytes to read; the largest keys fit: an RSA key of 16,384 bits takes 12 KiB
_PUBLIC = re.compile(rb"(ssh-(rsa|dss|ed25519|ed448)|ecdsa-sha2-|sk-(ssh|ecdsa)-)\S* AAAA|-+ ?BEGIN (\w+ )?PUBLIC KEY")
_PEM = re.compile(rb"-----BEGIN (\w+ )*PRIVATE KEY-----")
_OPENSSH = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----([\sA-Za-z0-9+/=]+)")
_DER = b"\x30"  # the first byte of keys in binary form (PKCS#1 and PKCS#8)
# An OpenSSH key begins with "openssh-key-v1\0", then the length and the name of its cipher: see PROTOCOL.key of
# OpenSSH.
_MAGIC, _NO_CIPHER = b"openssh-key-v1\0", b"\0\0\0\x04none"


def key_objection(path: Path) -> str:
    """Return why the file is not a usable private key, and what to do; empty: the file may be usable."""
    try:
        with path.open("rb") as file:
            begin = file.read(READ_BYTES)
    except FileNotFoundError:
        return f"is not a file: `ls {path.parent}` shows what there is; {_WITHOUT}"
    except IsADirectoryError:
        return f"is not a file, but a folder: give one of the keys in it; {_WITHOUT}"
    except ValueError:
        return f"is not a file, and {str(path)!r} can be the path of none; {_WITHOUT}"
    except OSError as error:
        return f"cannot be read ({error.strerror}): `ls -l {path}` says whose it is"
    return key_objection_to(begin, path)


def key_objection_to(begin: bytes, path: Path) -> str:
    """Return why a file that begins with the bytes ``begin`` is not a usable private key; empty: it may be usable."""
    begin = begin.lstrip() if not begin.startswith(_DER) else begin
    if _PUBLIC.match(begin):
        private = path.with_suffix("") if path.suffix == ".pub" else "the file beside it"
        return f"is a public key, which is for the hosts: give the private one, {private}"
    if begin.startswith(b"PuTTY-User-Key-File"):
        return f"is in PuTTY's format: make one of OpenSSH's by `puttygen {path} -O private-openssh -o NEW`"
    if not begin.startswith(_DER) and not _PEM.match(begin):
        return "is no private key: such a file begins with -----BEGIN ... PRIVATE KEY-----"
    if _encrypted(begin):
        return f"has a passphrase, which nobody is asked for here: {passphrase_advice(f'ssh-add {path}')}"
    return ""


def passphrase_advice(add: str) -> str:
    return f"give it to your agent by `{add}`, and leave out key=, so that the agent's keys are tried"


_WITHOUT = "without key= your agent's keys and the usual ones in ~/.ssh are tried"


def _encrypted(begin: bytes) -> bool:
    if b"BEGIN ENCRYPTED" in begin or b"Proc-Type: 4,ENCRYPTED" in begin:
        return True
    if (match := _OPENSSH.match(begin)) is None:
        return False
    try:
        # Base64 has groups of 4 characters, and 64 is a multiple of 4.
        data = binascii.a2b_base64(b"".join(match[1].split())[:64])
    except binascii.Error:
        return False  # not decided here: the connection attempt reports the error
    cipher = data[len(_MAGIC) :][: len(_NO_CIPHER)]
    return data.startswith(_MAGIC) and len(cipher) == len(_NO_CIPHER) and cipher != _NO_CIPHER


# --- options of a command ---------------------------------------------------------------------------------------------


OptionValue = str | int | float | bool | Sequence[str]
LongOptions = tuple[tuple[str, str | None], ...]  # (option, value) pairs; a value of None: the option has no value

_NAME = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)


def long_options(
    provider: str,
    options: Mapping[str, OptionValue] | LongOptions,
    *,
    command: str,
    example: str,
    ours: Mapping[str, str],
    abbreviated: bool = False,
) -> LongOptions:
    """Check a provider's ``options=`` for a ``command``. If a value is a list, the option is repeated for each entry.

    ``example``: an option name of the command, for errors. ``ours``: options that Outrider sets itself, each with the
    option of Outrider to use instead (empty: there is none). ``abbreviated``: the command accepts abbreviated option
    names.

    Raises:
        ValueError: An option can never work, or is one of ``ours``.
    """
    try:
        pairs = dict(options)
    except (TypeError, ValueError):
        raise ValueError(f"{provider}(options=...) takes names and values, not {shown(options)}") from None
    words: list[tuple[str, str | None]] = []
    for name, value in pairs.items():
        plain = str(name).lstrip("-").replace("_", "-")
        if not _NAME.fullmatch(plain) or (len(plain) < 2 and not abbreviated):
            raise ValueError(f"{provider}(options=...): {name!r} is no long option of {command}, such as {example!r}")
        taken = [each for each in sorted(ours) if each == plain or (abbreviated and each.startswith(plain))]
        if taken:
            instead = f": say it by {ours[taken[0]]}" if ours[taken[0]] else ", which Outrider sets itself"
            program = command.split(maxsplit=1)[0]
            short = f" ({program} reads {plain} as the beginning of a longer name)" if plain != taken[0] else ""
            raise ValueError(f"{provider}(options=...): {taken[0]} is not taken here{instead}{short}")
        if value is False or "\n" in str(value):
            raise ValueError(f"{provider}(options=...): {plain} is {value!r}: leave it out, or give it a text or True")
        if value is True:
            words.append((plain, None))
        elif isinstance(value, str | int | float):
            words.append((plain, str(value)))
        elif isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value):
            words += [(plain, str(each)) for each in value]
        else:
            takes = "takes a text, a number, True or a list of texts"
            raise ValueError(f"{provider}(options=...): {plain} {takes}, not {shown(value)}")
    return tuple(words)


def as_words(options: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return the options as words of a command line."""
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]


def words_of(command: object) -> tuple[object, ...]:
    """Return the words of a command that a user gives as a line or as a list; empty: it is neither."""
    if not isinstance(command, str):
        return tuple(command) if isinstance(command, Sequence) else ()
    try:
        return tuple(shlex.split(command))
    except ValueError:  # the line has an unclosed quote
        return ()
