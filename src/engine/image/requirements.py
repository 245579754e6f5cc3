"""Collect the packages that an image asks for into one text for uv, from requirements, files of them, and locks."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

from ...providers.private import cache_root
from ...providers.threads import in_thread
from ..api.errors import SpecError
from ..api.secrets import Secret, revealed
from .cache import client_cache, sha256, written

if TYPE_CHECKING:
    from ..api.image import Image
    from .uv import Uv

_OPTION = re.compile(r"(-[a-z]|--[a-z-]+)(?:\s*=\s*|\s+|(?<=^-[a-z]))(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_WHEEL = re.compile(r"(?:[A-Za-z0-9._-]+(?:\[[^\]]*\])?\s*@\s*)?(?:file://)?([^\s;#]+\.whl)")
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Requirements:
    text: str  # a requirements file that refers to no other file, except to wheels on this computer
    constraints: str = ""
    urls: tuple[str | Secret, ...] = ()  # indexes, in the order of preference
    folders: tuple[Path, ...] = ()  # folders of wheels on this computer
    only_folders: bool = False  # no index is used, not even the default one
    options: tuple[str, ...] = ()  # for `uv pip install` and `uv pip compile`
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables in the text, with their values
    listed: tuple[tuple[str, int], ...] = ()  # names and sizes of the wheels in the folders
    wheels: tuple[str, ...] = ()  # SHA-256 of the wheels that the text names; they are in this computer's cache

    @property
    def is_local(self) -> bool:
        """Return whether only this computer can resolve the requirements."""
        return bool(self.folders or self.wheels)

    def identity(self) -> list[object]:
        """The values that decide whether two environments are the same: without passwords, with the local wheels."""
        return [
            self.text,
            self.constraints,
            [without_password(revealed(url)) for url in self.urls],
            self.listed,
            self.only_folders,
            list(self.options),
            self.wheels,
        ]


async def read(image: Image, uv: Uv | None) -> Requirements | None:
    """Read the requirements of an image; None where it asks for no packages.

    Raises:
        SpecError: a file does not exist, or asks for something that cannot be sent.
        BootstrapError: uv cannot read the lock.
    """
    if not image.has_packages:
        return None
    urls, folders = _indexes(image.pip_indexes)
    if image.lock_path is not None:
        assert uv is not None, "prepare has found it"
        text, more, locked = await _locked(image.lock_path, uv, urls)
        found, options = (*folders, *locked), ("--index-strategy", "unsafe-best-match")
        return Requirements(text, urls=(*urls, *more), folders=found, listed=_listed(found), options=options)
    reader = await in_thread(_Reader, image, abandon=True)
    found = (*folders, *reader.folders)
    return Requirements(
        "".join(f"{line}\n" for line in reader.lines),
        "".join(f"{line}\n" for line in reader.constraints),
        urls,
        found,
        only_folders=bool(folders) and not urls,
        variables=reader.variables,
        listed=_listed(found),
        wheels=tuple(reader.wheels),
    )


def _listed(folders: Sequence[Path]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((wheel.name, wheel.stat().st_size) for folder in folders for wheel in folder.glob("*.whl")))


def without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _indexes(given: Sequence[str | Secret]) -> tuple[tuple[str | Secret, ...], tuple[Path, ...]]:
    urls: list[str | Secret] = []
    folders: list[Path] = []
    for index in given:
        text = revealed(index)
        if text.startswith(("http://", "https://")):
            urls.append(index)
            continue
        folder = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text).expanduser().absolute()
        if not folder.is_dir():
            _refuse(f"Image(pip_indexes=...): {index!r} is neither a URL nor a folder of this computer ({folder}).")
        folders.append(folder)
    return tuple(urls), tuple(folders)


class _Reader:
    """Merges an image's requirements and requirements files, in pip's format, into one text."""

    def __init__(self, image: Image) -> None:
        self.lines: list[str] = []
        self.constraints: list[str] = []
        self.folders: list[Path] = []
        self.wheels: list[str] = []
        self.variables: dict[str, str] = {}
        self._read: set[tuple[Path, bool]] = set()
        for requirement in image.pip:
            self._line(requirement, Path.cwd(), "Image(pip=...)")
        if image.requirements_path is not None:
            self._file(image.requirements_path.resolve())

    def _file(self, path: Path, *, constrains: bool = False) -> None:
        if (path, constrains) in self._read:
            return
        self._read.add((path, constrains))
        try:
            text = path.read_text()
        except OSError as error:
            raise SpecError(
                f"Image(requirements=...): {path} cannot be read: {error.strerror}. Mend the path or its mode."
            ) from error
        for line in _COMMENT.sub("", text.replace("\\\n", " ")).splitlines():
            if line.strip():
                self._line(line.strip(), path.parent, str(path), constrains=constrains)

    def _line(self, line: str, folder: Path, where: str, *, constrains: bool = False) -> None:
        for name in _VARIABLE.findall(line):
            if name not in os.environ:
                _refuse(f"{where} refers to ${{{name}}}, which is not set in this process: set it, or write it out.")
            self.variables[name] = os.environ[name]
        option = _OPTION.fullmatch(line)
        if option is not None:
            name, value = option.group(1), option.group(2).strip()
            is_constraint = name in ("-c", "--constraint", "--constraints")
            if is_constraint or name in ("-r", "--requirement", "--requirements"):
                self._file((folder / value).resolve(), constrains=constrains or is_constraint)
                return
            if name in ("-e", "--editable"):
                _refuse(_own_code(value, where))
            if name.lstrip("-") in ("f", "find-links") and "://" not in value:
                self.folders.append((folder / value).absolute())
                return
        elif wheel := _WHEEL.match(line):
            if "://" not in wheel[1]:
                path = (folder / wheel[1]).absolute()
                if not path.is_file():
                    _refuse(f"{where}: there is no file {path}: correct the path, or build the wheel.")
                digest, kept = _kept(path)
                self.wheels.append(digest)
                line = f"{path.name.split('-')[0]} @ {kept.as_uri()}{line[wheel.end() :]}"
        elif line.startswith((".", "/", "~", "file:")) or "@ file:" in line:
            _refuse(_own_code(line, where))
        (self.constraints if constrains else self.lines).append(line)


def _kept(wheel: Path) -> tuple[str, Path]:
    """Copy a wheel into the cache by its SHA-256, so that later machines get the same one even if it is rebuilt."""
    try:
        digest = sha256(wheel)
        kept = client_cache() / "wheels" / digest / wheel.name
        if not kept.exists() or sha256(kept) != digest:
            with written(kept) as beside:
                shutil.copyfile(wheel, beside)
                if sha256(beside) != digest:
                    raise OSError(errno.EBUSY, "it is being written to")
    except OSError as error:
        raise SpecError(
            f"{wheel} cannot be copied to {cache_root()}: {error.strerror}. Try again when nobody writes it, or with "
            "more room there."
        ) from error
    return digest, kept


def _own_code(what: str, where: str) -> str:
    return (
        f"{where}: {what!r} is a folder of this computer. Send code by Image(includes=[...]), or build a wheel of it "
        "(`uv build --wheel`) and name that."
    )


async def _locked(
    lock: Path, uv: Uv, given: Sequence[str | Secret]
) -> tuple[str, tuple[str | Secret, ...], tuple[Path, ...]]:
    """A lock as exact requirements with hashes; the indexes and folders of wheels that it names besides ``given``."""
    if lock.name == "uv.lock":
        export = ("export", "--frozen", "--no-dev", "--no-emit-project", "--no-emit-local", "--format", "pylock.toml")
        text = await uv.run("--quiet", *export, "--no-header", "--directory", str(lock.parent))
    else:
        text = await in_thread(lock.read_text, abandon=True)
    try:
        packages = tomllib.loads(text).get("packages", ())
        lines = [_exactly(package) for package in packages]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise SpecError(f"Image(lock=...): {lock} is not a lock that can be read: {error}. Lock again.") from error
    indexes = dict.fromkeys(str(package["index"]) for package in packages if "index" in package)
    known = {without_password(revealed(url)).rstrip("/") for url in given} | {await _default_index(uv)}
    urls, folders = _indexes([index for index in indexes if without_password(index).rstrip("/") not in known])
    return "".join(f"{line}\n" for line in lines), urls, folders


def _exactly(package: Mapping[str, Any]) -> str:
    """A package of a lock as a requirement that only the locked files meet."""
    name = package["name"]
    marker = f" ; {package['marker']}" if "marker" in package else ""
    if "vcs" in package:
        source = package["vcs"]
        return f"{name} @ {source['type']}+{source['url']}@{source['commit-id']}{marker}"
    if "directory" in package or "version" not in package:
        _refuse(
            f"Image(lock=...): {name} is locked to a folder or file of its own: send it by includes=, or as a wheel."
        )
    files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
    exact = f"{name}=={package['version']}"
    if "archive" in package:
        files = [package["archive"]]
        if "url" in files[0]:
            exact = f"{name} @ {files[0]['url']}"
    hashes = (item for file in files for item in file.get("hashes", {}).items())
    return exact + marker + "".join(f" --hash={algorithm}:{value}" for algorithm, value in hashes)


async def _default_index(uv: Uv) -> str:
    asked = await uv.run("--quiet", "pip", "compile", "--no-header", "--emit-index-url", "-", stdin=b"\n")
    found = next((line.split(" ", 1)[1] for line in asked.splitlines() if "index-url " in line), "")
    return without_password(found).rstrip("/")


def _refuse(message: str) -> NoReturn:
    raise SpecError(message)
