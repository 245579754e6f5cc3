"""`Image`: the software of a pool's nodes. Options are checked when an `Image` is created."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import ModuleType

from ...lazy_dataclass import dataclass
from .checks import checks_options, refuse, shown
from .secrets import Secret

Text = str | os.PathLike[str]

_LONGEST_S = 1e9  # longest bootstrap timeout in seconds
_VERSION = r"(\d+)\.(\d+)(\.\d+)?"
_CONTAINER = r"(?a)[A-Za-z0-9][\w.:/@-]*"
_APT = r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?([=/][A-Za-z0-9][A-Za-z0-9.+:~-]*)?"


@checks_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The software of a pool's nodes. With the defaults, a node needs only a Python.

    Outrider uses uv to install packages, and Python where the host has not the right version. uv comes with Outrider
    and is copied to hosts that lack it. Local nodes install nothing: they compare ``pip``, ``requirements`` and ``apt``
    with what is installed here.

    Args:
        python: ``"auto"``: the minor version of this program, from the host itself if the host has that version. Or a
            version, such as ``"3.11.9"``. Or the path of an interpreter on the host, whose packages stay visible.
        pip: Requirements, such as ``["numpy>=2"]``.
        pip_indexes: Indexes that are searched before the default one: URLs (as `Secret` if they contain one), or local
            folders of wheels.
        requirements: The path of a requirements file.
        lock: A ``uv.lock`` or ``pylock.toml``, or its folder. Not together with ``pip`` or ``requirements``.
        apt: Debian packages, ``"name"`` or ``"name=version"``. Needs root, or ``sudo`` without a password.
        env: Environment variables of every task and of the ``run`` commands; values may be `Secret`.
        includes: Local folders, files and modules that tasks can import and read.
        excludes: Patterns of files that are not sent, as in a ``.gitignore``.
        run: Commands that run in order at every start of a node, each a line for ``sh`` or a list of words.
        bootstrap_timeout: Seconds for the whole installation on each host. Default: 600.
        offline: Whether this computer downloads packages and sends them to hosts. None: only to hosts that do not reach
            the index.
        container: The image of the nodes' containers, such as ``"python:3.12-slim"``, for providers that have
            containers. None: the provider's own.

    Raises:
        SpecError: An option is not valid.
    """

    python: str = "auto"
    pip: Sequence[str] = ()
    pip_indexes: Sequence[str | Secret] = ()
    requirements: Text | None = None  # stored as an absolute path
    lock: Text | None = None
    apt: Sequence[str] = ()
    env: Mapping[str, str | Secret] = field(default_factory=dict)
    includes: Sequence[Text | ModuleType] = ()
    excludes: Sequence[str] = ()
    run: Sequence[str | Sequence[str]] = ()
    bootstrap_timeout: float = 600.0
    offline: bool | None = None
    container: str | None = None

    def __post_init__(self) -> None:
        _check_python(self.python)
        for name in ("pip", "apt", "excludes"):
            _keep(self, name, _texts(name, getattr(self, name)))
        for package in self.apt:
            if not re.fullmatch(_APT, package):
                refuse(f"Image(apt=...): {package!r} cannot be the name of a Debian package.")
        for requirement in self.pip:
            if requirement.lstrip().startswith("-"):
                refuse(
                    f"Image(pip=...): {requirement!r} is an option: write it into a file, and name that by "
                    "requirements=; indexes go into pip_indexes=."
                )
            if re.fullmatch(r"\s*[A-Za-z0-9][\w.-]*(\s+[A-Za-z0-9][\w.-]*)+\s*", requirement):
                refuse(
                    f"Image(pip=...): {requirement!r} names several packages: write Image(pip={requirement.split()})."
                )
            if re.search(r"(==|[<>~!]=|[<>@])\s*$", requirement):
                refuse(f"Image(pip=...): {requirement!r} lacks the version: write one, or the name alone.")
        _keep(self, "pip_indexes", _list("pip_indexes", self.pip_indexes, (str, Secret)))
        _keep(self, "requirements", _file("requirements", self.requirements))
        _keep(self, "lock", _lock(self.lock))
        if self.lock is not None and (self.pip or self.requirements is not None):
            refuse("Image: a lock says everything that is installed: leave out pip= and requirements=, or lock=.")
        _keep(self, "env", _environment(self.env))
        _keep(self, "includes", _list("includes", self.includes, (str, os.PathLike, ModuleType)))
        _keep(self, "run", _commands(self.run))
        if not isinstance(self.bootstrap_timeout, int | float) or isinstance(self.bootstrap_timeout, bool):
            refuse(f"Image(bootstrap_timeout=...) takes seconds, not {shown(self.bootstrap_timeout)}.")
        if not 0 < self.bootstrap_timeout < _LONGEST_S:
            within = f"more than 0 and less than {_LONGEST_S:g} seconds"
            refuse(f"Image(bootstrap_timeout=...) must be {within}, not {shown(self.bootstrap_timeout)}.")
        if self.offline not in (None, True, False):
            refuse(f"Image(offline=...) takes True, False, or None for where it is needed, not {shown(self.offline)}.")
        _check_container(self.container)

    @property
    def has_packages(self) -> bool:
        """Return whether the image has Python packages to install."""
        return bool(self.pip) or self.requirements is not None or self.lock is not None

    @property
    def needs_uv(self) -> bool:
        """Return whether every host needs uv. Otherwise only a host without a suitable Python needs it."""
        return self.has_packages or self.python.count(".") == 2


def _check_container(container: object) -> None:
    if container is not None and not (isinstance(container, str) and re.fullmatch(_CONTAINER, container)):
        refuse(f"Image(container=...) takes an image as for `docker run`, not {shown(container)}.")


def _check_python(python: object) -> None:
    if not isinstance(python, str):
        refuse(f"Image(python=...) takes 'auto', a version or a path, not {shown(python)}.")
    if python == "auto" or python.startswith("/"):
        return
    match = re.fullmatch(_VERSION, python)
    if match is None:
        refuse(f"Image(python={python!r}): it takes 'auto', a version such as '3.11', or an absolute path on the node.")
    ours = tuple(map(str, sys.version_info[:2]))
    if match.group(1, 2) != ours:
        refuse(
            f"Image(python={python!r}): this program's Python is {'.'.join(ours)}, and functions cross as bytecode, "
            f"which only the same version understands: run it with {match[1]}.{match[2]}, or leave python out."
        )


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = _list(name, value, (str,))
    for text in texts:
        if not text.strip() or "\0" in text or "\n" in text:
            refuse(f"Image({name}=...): {text!r} is empty, or more than one line.")
    return texts


def _list(name: str, value: object, kinds: tuple[type, ...]) -> tuple[str, ...]:
    if isinstance(value, (str, Mapping, Secret)) or not isinstance(value, Sequence):
        refuse(f"Image({name}=...) takes a list, not {shown(value)}.")
    for each in value:
        if not isinstance(each, kinds) or each == "":
            refuse(f"Image({name}=...): {shown(each)} does not belong there.")
    return tuple(value)


def _file(name: str, value: object) -> Path | None:
    if value is None:
        return None
    # imported here, because few programs use local paths in their image
    from ...providers.shared.paths import expanded, no_file

    if not isinstance(value, (str, os.PathLike)):
        refuse(f"Image({name}=...) takes the path of a file, not {shown(value)}.")
    path = expanded(value).absolute()
    if why := no_file(path):
        refuse(f"Image({name}=...): {why}.")
    return path


def _lock(value: object) -> Path | None:
    path = None if value is None else _file("lock", _lock_in(value))
    if path is None:
        return None
    if path.name != "uv.lock" and not re.fullmatch(r"pylock(\.[^.]+)?\.toml", path.name):
        refuse(
            f"Image(lock=...) takes a uv.lock or a pylock.toml, not {path.name}; a requirements file: requirements=."
        )
    if path.name == "uv.lock" and not os.path.isfile(path.parent / "pyproject.toml"):  # noqa: PTH113
        refuse(f"Image(lock=...): uv.lock belongs to a pyproject.toml, and there is none in {path.parent}.")
    return path


def _lock_in(value: object) -> object:
    from ...providers.shared.paths import expanded, no_file, no_folder

    if not isinstance(value, (str, os.PathLike)) or no_folder(folder := expanded(value)):
        return value
    lock = next((folder / name for name in ("uv.lock", "pylock.toml") if not no_file(folder / name)), None)
    if lock is None:
        refuse(f"Image(lock=...): there is neither uv.lock nor pylock.toml in {folder.absolute()}.")
    return lock


def _environment(value: object) -> dict[str, str | Secret]:
    if not isinstance(value, Mapping):
        refuse(f"Image(env=...) takes a mapping of names to strings, not {shown(value)}.")
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            refuse(f"Image(env=...): {name!r} cannot be the name of an environment variable.")
        if not isinstance(text, Secret) and (not isinstance(text, str) or "\0" in text):
            refuse(f"Image(env=...): the value of {name} must be a string without NUL, not {shown(text)}.")
        if name == "COMPUTE_POOL":
            refuse("Image(env=...): COMPUTE_POOL is set by the pool itself.")
    return dict(value)


def _commands(value: object) -> tuple[str | tuple[str, ...], ...]:
    commands: list[str | tuple[str, ...]] = []
    for command in _list("run", value, (str, list, tuple)):
        words = (command,) if isinstance(command, str) else tuple(command)
        if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0].strip():
            refuse(f"Image(run=...): {shown(command)} is neither a line for the shell nor a list of words.")
        commands.append(command if isinstance(command, str) else words)
    return tuple(commands)


def _keep(image: Image, name: str, value: object) -> None:
    object.__setattr__(image, name, value)
