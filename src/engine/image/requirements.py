"""Conversion of the packages that an image requests into one requirements file for uv.

Also runs uv on this computer. The functions at the top find the hashes in a user's requirements, and check files
against them. `parse_lock` converts a uv.lock or pylock.toml to requirements that only the locked files satisfy; if that
is not possible, it raises an error.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ...lazy_dataclass import dataclass
from ...providers.shared.paths import cache_root, expanded, no_folder
from ...providers.shared.threads import in_thread
from ..api.errors import SpecError
from ..api.image import Image
from ..api.secrets import Scrubber, Secret, revealed
from .cache import client_cache, sha256, written
from .hints import bootstrap_error

# pip's two ways to write a hash in a requirement: the option `--hash=sha256:...`, or `#sha256=...` at the end of a URL
_HASH_OPTION = re.compile(r"\s--hash(?:\s*=\s*|\s+)(\w+):([0-9a-fA-F]+)")
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
    return bool(_HASH_OPTION.search(requirement)) or requirement.startswith("--require-hashes")


def hashes_in(requirement: str) -> frozenset[Hash]:
    pairs = (*_HASH_OPTION.findall(requirement), *_FRAGMENT.findall(requirement))
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


Package = Mapping[str, Any]  # the entry of one package in a lock file


class Lock(NamedTuple):
    requirements: tuple[str, ...]
    indexes: tuple[str, ...]  # URLs of the package indexes that the lock file names
    hashes: Mapping[str, str]  # file name -> hash of the file
    all_hashed: bool  # False: some packages have a git commit instead of a hash


def parse_lock(path: Path, pylock: str, *, uv_lock: str = "") -> Lock:
    """Parse a pylock.toml. ``uv_lock``: the text of the uv.lock from which the pylock.toml was created; empty: none.

    Raises:
        SpecError: the lock file cannot be read, or does not determine exactly which files are installed.
    """
    try:
        packages: Sequence[Package] = tomllib.loads(pylock).get("packages", ())
        unfixed = _without_hash(tomllib.loads(uv_lock).get("package", ()))
        for package in packages:
            if (package["name"], package.get("version")) in unfixed or not _is_fixed(package):
                raise SpecError(
                    f"Image(lock=...): {path} has no hash for a file of {package['name']}, so that another file could "
                    "be installed. Lock from an index that names the hashes of its files, or use requirements=."
                )
        requirements = tuple(map(_exactly, packages))
        indexes = dict.fromkeys(str(package["index"]) for package in packages if "index" in package)
        hashes = {_name(file): _hashes(file)[0] for package in packages for file in _files(package)}
    except (tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError) as error:
        raise SpecError(f"Image(lock=...): {path} is not a lock that can be read: {error}. Lock again.") from error
    return Lock(requirements, tuple(indexes), hashes, not any("vcs" in package for package in packages))


def _without_hash(packages: Sequence[Package]) -> set[tuple[str, str]]:
    """Return (name, version) of the packages in a uv.lock that have a file without a hash.

    For these files, uv would accept the hash that the index has now.
    """
    return {
        (package["name"], package.get("version", ""))
        for package in packages
        if any("url" in file and "hash" not in file for file in _files(package))
    }


def _is_fixed(package: Package) -> bool:
    return all(map(_hashes, _files(package))) if _files(package) else "vcs" in package or "directory" in package


def _files(package: Package) -> list[Package]:
    if "archive" in package:
        return [package["archive"]]
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]


def _hashes(file: Package) -> list[str]:
    return [f"{algorithm}:{value}" for algorithm, value in file.get("hashes", {}).items()]


def _name(file: Package) -> str:
    """Return the file's name. Some lock files contain it only as part of the URL or path."""
    place = file.get("url") or file.get("path") or ""
    return str(file.get("name") or unquote(urlsplit(place).path.rpartition("/")[2]))


def _exactly(package: Package) -> str:
    name = package["name"]
    marker = f" ; {package['marker']}" if "marker" in package else ""
    if "vcs" in package:
        source = package["vcs"]
        return f"{name} @ {source['type']}+{source['url']}@{source['commit-id']}{marker}"
    if "directory" in package or "version" not in package:
        raise SpecError(
            f"Image(lock=...): {name} is locked to a folder or file of its own: send it by includes=, or as a wheel."
        )
    url = package.get("archive", {}).get("url")
    exact = f"{name} @ {url}" if url else f"{name}=={package['version']}"
    return exact + marker + "".join(f" --hash={each}" for file in _files(package) for each in _hashes(file))


_OPTION = re.compile(r"(-[a-z]|--[a-z-]+)(?:\s*=\s*|\s+|(?<=^-[a-z]))(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_WHEEL = re.compile(r"(?:[A-Za-z0-9._-]+(?:\[[^\]]*\])?\s*@\s*)?(?:file://)?([^\s;#]+\.whl)")
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Requirements:
    text: str  # content of a requirements file; it refers to no other files, except wheels on this computer
    constraints: str = ""
    urls: tuple[str | Secret, ...] = ()  # package indexes; the first has the highest priority
    folders: tuple[Path, ...] = ()  # folders on this computer that contain wheels
    only_folders: bool = False  # use only ``folders``, and no package index, not even the default index
    options: tuple[str, ...] = ()  # further options for `uv pip install` and `uv pip compile`
    all_hashed: bool = False  # whether every package must match one of the hashes in ``text``
    # name -> value of the environment variables to which ``text`` refers
    variables: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[tuple[str, int], ...] = ()  # (name, size) of the wheels in ``folders``
    wheels: tuple[str, ...] = ()  # SHA-256 of the wheels in this computer's cache to which ``text`` refers
    locked: Mapping[str, str] = field(default_factory=dict)  # name of a file in the lock -> hash of the file
    # packages that plugins need, not contained in ``text``; they are installed on hosts that lack them
    of_plugins: tuple[str, ...] = ()

    def with_packages(self, packages: Sequence[str]) -> Requirements:
        """Return a copy of these requirements with additional packages."""
        return replace(self, text=self.text + "".join(f"{each}\n" for each in packages))

    @property
    def is_local(self) -> bool:
        """Return whether the requirements can be resolved only on this computer, because they refer to files on it."""
        return bool(self.folders or self.wheels)

    @property
    def install_options(self) -> tuple[str, ...]:
        """Options for `uv pip install`.

        With ``--verify-hashes``, uv checks hashes only for requirements with ``==``. With ``--require-hashes``, it
        checks all.
        """
        return (*self.options, "--require-hashes" if self.all_hashed else "--verify-hashes")

    def uv_environment(self, folders: Sequence[Path] = ()) -> dict[str, str]:
        """Return the environment variables for uv: the package indexes, and the variables to which the text refers.

        Indexes are not passed as arguments, because other users could read the passwords in them.
        """
        variables = {"UV_INDEX": " ".join(map(revealed, self.urls)), "UV_FIND_LINKS": ",".join(map(str, folders))}
        return {**{name: value for name, value in variables.items() if value}, **self.variables}

    def identity(self) -> list[object]:
        """Return the values that determine the content of an environment, for its digest. Passwords are left out."""
        return [
            self.text,
            self.constraints,
            [without_password(revealed(url)) for url in self.urls],
            self.listed,
            self.only_folders,
            list(self.install_options),
            self.wheels,
        ]


class Uv(NamedTuple):
    path: Path
    version: str

    @classmethod
    def if_installed(cls) -> Uv | None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            from uv import find_uv_bin

            return cls(Path(find_uv_bin()), version("uv"))
        except (ImportError, FileNotFoundError, PackageNotFoundError):
            return None

    async def run(
        self, *arguments: str, secrets: Iterable[Secret] = (), env: Mapping[str, str] | None = None, stdin: bytes = b"",
        cwd: Path | None = None,
    ) -> str:  # fmt: skip
        """Run uv, and return its stdout. May be cancelled at any time.

        Raises:
            BootstrapError: uv failed. The phase of the error is "packages".
        """
        running = await asyncio.create_subprocess_exec(
            str(self.path),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1", **(env or {})},
            cwd=cwd,
        )
        try:
            out, errors = await running.communicate(stdin)
        except BaseException:
            running.kill()
            await asyncio.shield(running.wait())
            raise
        if running.returncode == 0:
            return out.decode()
        scrub = Scrubber(secrets)
        command = scrub(f"uv {' '.join(arguments)}")
        raise bootstrap_error(
            "packages",
            f"on this computer, {command} ended with exit status {running.returncode}",
            command=command,
            exit_status=running.returncode,
            log=scrub(errors.decode(errors="replace")).splitlines(),
            systematic=True,
        )


async def read(image: Image, uv: Uv | None, of_plugins: Sequence[Sequence[str]] = ()) -> Requirements | None:
    """Read the requirements of an image. None: neither the image nor a plugin needs packages.

    ``of_plugins``: the packages of each plugin. If the image names a package, a plugin's request for that package is
    left out. If the image has hashes or a lock file, it must name all packages, so no packages of plugins are added.
    """
    if not image.has_packages and not any(of_plugins):
        return None
    if image.lock is not None:
        assert uv is not None, "prepare has found it"
        return await _locked(Path(image.lock), uv, image.pip_indexes)
    urls, folders = _indexes(image.pip_indexes)
    reader = await in_thread(Collected, image, abandon=True)
    all_folders = (*folders, *reader.folders)
    all_hashed = any(map(has_option, reader.lines))
    if all_hashed:
        _check_hashed(reader.lines)
    return Requirements(
        "".join(f"{line}\n" for line in reader.lines),
        "".join(f"{line}\n" for line in reader.constraints),
        urls,
        all_folders,
        only_folders=bool(folders) and not urls,
        all_hashed=all_hashed,
        variables=reader.variables,
        listed=_listed(all_folders),
        wheels=tuple(reader.wheels),
        of_plugins=() if all_hashed else _unnamed(of_plugins, reader.lines, reader.constraints),
    )


def _unnamed(of_plugins: Sequence[Sequence[str]], lines: Sequence[str], constraints: Sequence[str]) -> tuple[str, ...]:
    """Return the packages that plugins need and the image does not name.

    If the image names or constrains one package of a plugin, the plugin's other packages are requested without a
    version, because the version that is installed on this computer may not fit.
    """
    named, constrained = ({_project(line) for line in each if line[0] != "-"} for each in (lines, constraints))
    decided, free = named | constrained, set[str]()
    for packages in of_plugins:
        projects = set(map(_project, packages))
        free |= projects if projects & decided else set()
    wanted = (each for packages in of_plugins for each in packages if _project(each) not in named)
    return tuple(dict.fromkeys(_any_version(each) if _project(each) in free else each for each in wanted))


def _any_version(requirement: str) -> str:
    pinned, _, marker = requirement.partition(";")
    return pinned.partition("==")[0] + (marker and f";{marker}")


def _project(requirement: str) -> str:
    """Return the package's name without "-cpu" or "-gpu": tensorflow-cpu provides the same files as tensorflow."""
    return name_of(requirement).removesuffix("-cpu").removesuffix("-gpu")


def _listed(folders: Sequence[Path]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((wheel.name, wheel.stat().st_size) for folder in folders for wheel in folder.glob("*.whl")))


def without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _indexes(indexes: Sequence[str | Secret]) -> tuple[tuple[str | Secret, ...], tuple[Path, ...]]:
    urls: list[str | Secret] = []
    folders: list[Path] = []
    for index in indexes:
        text = revealed(index)
        if text.startswith(("http://", "https://")):
            urls.append(index)
            continue
        folder = expanded(unquote(urlsplit(text).path) if text.startswith("file://") else text).absolute()
        if no_folder(folder):
            raise SpecError(f"Image(pip_indexes=...): {index!r} is neither a URL nor a folder here ({folder}): fix it.")
        folders.append(folder)
    return tuple(urls), tuple(folders)


def _check_hashed(lines: Sequence[str]) -> None:
    for line in lines:
        # options need no hash, and neither do wheels on this computer, which cannot change after they were copied
        is_fixed = line.startswith("-") or "@ file:" in line or hashes_in(line)
        if not is_fixed:
            raise SpecError(
                f"Image(pip=..., requirements=...): {name_of(line)} has no hash, but other requirements have, "
                "and then every package must have one. Write them all (`uv pip compile --generate-hashes`), or take "
                "them out, or give a lock (lock=...)."
            )


class Collected:
    """The requirements of an image, from its settings and from requirements files, collected in pip's format."""

    def __init__(self, image: Image) -> None:
        self.lines: list[str] = []
        self.constraints: list[str] = []
        self.folders: list[Path] = []
        self.wheels: list[str] = []
        self.variables: dict[str, str] = {}
        self._read: set[tuple[Path, bool]] = set()
        for requirement in image.pip:
            self._line(requirement, Path.cwd(), "Image(pip=...)")
        if image.requirements is not None:
            self._file(Path(image.requirements).resolve())

    def _file(self, path: Path, *, constrains: bool = False) -> None:
        if (path, constrains) in self._read:
            return
        self._read.add((path, constrains))
        try:
            text = path.read_text()
        except OSError as error:
            raise SpecError(
                f"Image(requirements=...): {path} cannot be read: {error.strerror}. Make it readable."
            ) from error
        for line in _COMMENT.sub("", text.replace("\\\n", " ")).splitlines():
            if line.strip():
                self._line(line.strip(), path.parent, str(path), constrains=constrains)

    def _line(self, line: str, folder: Path, where: str, *, constrains: bool = False) -> None:
        for name in _VARIABLE.findall(line):
            if name not in os.environ:
                raise SpecError(f"{where} refers to ${{{name}}}, which is not set in this process: set it.")
            self.variables[name] = os.environ[name]
        option = _OPTION.fullmatch(line)
        if option is not None:
            name, value = option.group(1), option.group(2).strip()
            is_constraint = name in ("-c", "--constraint", "--constraints")
            if is_constraint or name in ("-r", "--requirement", "--requirements"):
                self._file((folder / value).resolve(), constrains=constrains or is_constraint)
                return
            if name in ("-e", "--editable"):
                raise SpecError(_own_code(value, where))
            if name.lstrip("-") in ("f", "find-links") and "://" not in value:
                self.folders.append((folder / value).absolute())
                return
        elif wheel := _WHEEL.match(line):
            if "://" not in wheel[1]:
                path = (folder / wheel[1]).absolute()
                if not path.is_file():
                    raise SpecError(f"{where}: there is no file {path}: correct the path, or build the wheel.")
                digest, kept = _kept(path)
                self.wheels.append(digest)
                line = f"{path.name.split('-')[0]} @ {kept.as_uri()}{line[wheel.end() :]}"
        elif line.startswith((".", "/", "~", "file:")) or "@ file:" in line:
            raise SpecError(_own_code(line, where))
        (self.constraints if constrains else self.lines).append(line)


def _kept(wheel: Path) -> tuple[str, Path]:
    """Copy a wheel into the cache, under its SHA-256.

    Machines that start later get this copy, even if the wheel changes.
    """
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


async def _locked(path: Path, uv: Uv, indexes: Sequence[str | Secret]) -> Requirements:
    """Convert a lock file to exact requirements with hashes.

    The indexes are ``indexes``, followed by further indexes that the lock file names.
    """
    uv_lock, pylock = "", await in_thread(path.read_text, abandon=True)
    if path.name == "uv.lock":
        export = ("export", "--frozen", "--no-dev", "--no-emit-project", "--no-emit-local", "--format", "pylock.toml")
        uv_lock, pylock = pylock, await uv.run("--quiet", *export, "--no-header", "--directory", str(path.parent))
    lock = parse_lock(path, pylock, uv_lock=uv_lock)
    output = await uv.run("--quiet", "pip", "compile", "--no-header", "--emit-index-url", "-", stdin=b"\n")
    default = next((line.split(" ", 1)[1] for line in output.splitlines() if "index-url " in line), "")
    known = {without_password(revealed(index)).rstrip("/") for index in (*indexes, default)}
    urls, folders = _indexes(
        [*indexes, *(index for index in lock.indexes if without_password(index).rstrip("/") not in known)]
    )
    return Requirements(
        "".join(f"{line}\n" for line in lock.requirements),
        urls=urls,
        folders=folders,
        listed=_listed(folders),
        options=("--no-deps", "--index-strategy", "unsafe-best-match"),
        all_hashed=lock.all_hashed,
        locked=lock.hashes,
    )
