"""The description of a run in `run.json`, without secrets: the program, its settings and versions, and the error that
ended the run.

Printing an error may call code of a user's class; errors raised there are ignored.
"""

from __future__ import annotations

import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...api.errors import BroadcastFailed
from ...api.language import is_own, worded
from ...api.secrets import HIDDEN, Secret
from ...api.tracebacks import remote_traceback

if TYPE_CHECKING:
    from ...api.settings import Settings


# Values of environment variables, arguments and credentials with such a name are hidden, even if they are not a
# `Secret`.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|DSN|COOKIE|(?<![A-Z])PAT(?![A-Z])", re.IGNORECASE)
# (class, field) that are no secrets in spite of their names: a path, and a public key for `outrider ssh`
_NO_SECRETS = {("Host", "key"), ("Host", "host_key")}
_LOGIN = re.compile(r"(?<=://)[^/\s]+(?=@)")  # the login in a URL: https://user:password@host
# An assignment in a shell or in a URL's query: NAME=value. A part of the value may be in quotes; an unclosed quote
# extends to the end of the text.
_ASSIGNED = re.compile(
    r"""(\b[A-Za-z_]\w*\+?=)((?:'[^']*(?:'|$)|"(?:\\.|[^"\\])*(?:"|\\?$)|\$\([^)]*(?:\)|$)|`[^`]*(?:`|$)|\\.|[^\s'"`;&|])+)""",
    re.DOTALL,
)
_METADATA = re.compile(r"outrider-([^-]+)\.dist-info")
_REPEATED = {"provider"}  # fields of `Settings` that are left out, because each spec contains its provider


def program_facts() -> dict[str, Any]:
    """Return facts about this program. Of its arguments, values of secrets are hidden."""
    system = os.uname()
    return {
        "argv": shown_arguments(sys.orig_argv),
        "cwd": _present_folder(),
        "python": sys.version.split()[0],
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "versions": _versions(),
        "seeds": _seeds(),
    }


def shown_arguments(words: Sequence[str]) -> list[str]:
    """Return arguments with the values hidden that follow a secret's name, as in ``--token=x`` and ``--token x``."""
    shown: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        before = shown[-1] if shown else ""
        if equals and " " not in name and _SECRET_NAME.search(name):
            shown.append(f"{name}={HIDDEN}")
        elif before.startswith("--") and "=" not in before and _SECRET_NAME.search(before) and not word.startswith("-"):
            shown.append(HIDDEN)
        else:
            shown.append(described(word))
    return shown


def spec_of(settings: Settings) -> dict[str, Any]:
    """Return the settings of a pool as JSON values."""
    return {
        each.name: described(getattr(settings, each.name)) for each in fields(settings) if each.name not in _REPEATED
    }


def described(value: Any) -> Any:  # noqa: PLR0911  a table
    """Return the value of a setting as JSON values, with secrets hidden."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Enum():
            return value.name
        case str():
            return _ASSIGNED.sub(_assigned, _LOGIN.sub(HIDDEN, value))
        case Secret():
            return repr(value)
        case PurePath():
            return str(value)
        case ModuleType():
            return value.__name__
        case Mapping():
            return {str(name): _named(str(name), each) for name, each in value.items()}
        case list() | tuple() | Set():
            return [described(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            shown = (each for each in fields(value) if each.repr)
            kind = type(value).__name__
            return {"class": kind} | {
                each.name: (described if (kind, each.name) in _NO_SECRETS else partial(_named, each.name))(
                    getattr(value, each.name, None)
                )
                for each in shown
            }
        case _:
            return getattr(value, "name", None) or type(value).__name__


def secrets_of(value: Any) -> list[Secret]:
    """Return all secrets in a pool's settings, including the secrets of plugins."""
    match value:
        case Secret():
            return [value]
        case str() | bytes():
            return []
        case Mapping():
            return [secret for each in value.values() for secret in secrets_of(each)]
        case list() | tuple() | Set():
            return [secret for each in value for secret in secrets_of(each)]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return [secret for each in fields(value) for secret in secrets_of(getattr(value, each.name, None))]
        case _:
            return []


def _named(name: str, value: Any) -> Any:
    return HIDDEN if isinstance(value, str) and _SECRET_NAME.search(name) else described(value)


def _assigned(match: re.Match[str]) -> str:
    return f"{match[1]}{HIDDEN}" if _SECRET_NAME.search(match[1]) else match[0]


def _present_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  a text
    except OSError:  # the working folder or the file was deleted
        return ""


def _versions() -> dict[str, str]:
    """Return the version of Outrider, and of each package that the program has imported so far and that has a
    version.
    """
    versions = {"outrider": _own_version()}
    for name, module in sorted(sys.modules.items()):
        if "." in name or name.startswith("_") or name in sys.stdlib_module_names or type(module) is not ModuleType:
            continue
        version = vars(module).get("__version__")
        if isinstance(version, str):
            versions.setdefault(name, version)
    return versions


def _own_version() -> str:
    """Return Outrider's version, read from the name of its metadata folder.

    Importing `importlib.metadata` instead would take 15 ms, and this function may run at the end of a program.
    """
    for folder in sys.path:
        with suppress(OSError):
            for name in os.listdir(folder or "."):  # noqa: PTH208  names
                if match := _METADATA.fullmatch(name):
                    return match[1]
    from importlib.metadata import version

    return version("outrider")


def _seeds() -> dict[str, Any]:
    """Return the random seeds of this program, as far as known. Tasks have seeds of their own."""
    seeds: dict[str, Any] = {}
    if (hashes := os.environ.get("PYTHONHASHSEED")) is not None:
        seeds["PYTHONHASHSEED"] = hashes
    # while another thread imports torch, `initial_seed` does not exist yet
    initial = getattr(sys.modules.get("torch"), "initial_seed", None)
    if initial is not None:
        seeds["torch"] = int(initial())
    return seeds


ERROR_CHARS = 256 * 1024  # from a longer traceback, only this many last characters are kept


def error_texts(error: BaseException, clean: Callable[[str], str]) -> dict[str, Any]:
    """Return an error's type, message and traceback.

    If a broadcast failed, ``first`` has the same fields for the error of the rank that failed first, with that rank's
    traceback.
    """
    texts = _texts(error, clean)
    broadcast = _broadcast_in(error)
    if broadcast is not None and broadcast.first.error is not None:
        first = broadcast.first
        trace = remote_traceback(broadcast.first.error)
        there = "" if trace is None else trace.text
        texts["first"] = {"rank": first.rank, "node": first.node, **_texts(broadcast.first.error, clean, there)}
    return texts


def _texts(error: BaseException, clean: Callable[[str], str], trace: str = "") -> dict[str, Any]:
    """Return the type, message and traceback of one error.

    ``trace``: its traceback in the process where it was raised.
    """
    texts: dict[str, Any] = {"type": type(error).__name__, "message": "", "traceback": ""}
    with suppress(Exception):
        message = clean(str(error))
        texts["message"] = worded(message) if is_own(error) else message
    with suppress(Exception):
        text = trace or "".join(traceback.format_exception(error))
        texts["traceback"] = clean(text if len(text) <= ERROR_CHARS else f"...{text[-ERROR_CHARS:]}")
    return texts


def _broadcast_in(error: BaseException) -> BroadcastFailed | None:
    """Return the error if a broadcast raised it; None: another error.

    The error may be inside an exception group that has no other error, as task groups raise.
    """
    while not isinstance(error, BroadcastFailed):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error
