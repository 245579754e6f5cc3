"""The install plan of a host: `prepare` reads the image, once per pool; the probe of a host decides the rest."""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from ...lazy_dataclass import dataclass
from ...providers.threads import in_thread
from ..api.errors import BootstrapError, SpecError
from ..api.image import Image
from ..api.secrets import revealed, revealed_env, secrets_in, shown_forms
from ..api.volume import Volume
from ..node import outrider_archive
from . import hashes, includes, requirements
from .hints import INSTALL, bootstrap_error
from .includes import Includes
from .probe import HostFacts, Python
from .requirements import Requirements, Uv, without_password
from .wheels import WheelCache

_INSTALLER_PYTHON = (3, 8)  # the oldest that the installer runs on; tasks need the client's own minor version
_BRING_IT = f"`{INSTALL}` here: then it is brought along"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An image, read and resolved as far as this computer can; `bootstrap` brings it to each host."""

    image: Image
    python: str  # this program's version, "3.11.7", whose minor version nodes must have
    runtime: outrider_archive.OutriderArchive
    includes: Includes
    requirements: Requirements | None  # None: neither the image nor a plugin asks for packages
    uv: Uv | None  # None: not installed here, and not needed yet
    wheel_cache: WheelCache  # wheels, and uv for other platforms, fetched when the first node needs them
    hidden: list[str]  # texts that no output may show: secrets in every form
    volumes: tuple[Volume, ...] = ()

    @property
    def minor(self) -> str:
        return self.python.rpartition(".")[0]


async def prepare(
    image: Image,
    volumes: Sequence[Volume] = (),
    packages: Sequence[Sequence[str]] = (),
    *,
    python: str = platform.python_version(),
) -> Prepared:
    """Read the included files and the lock, and build the runtime archive. ``packages``: of each plugin. Cancel-safe.

    Raises:
        SpecError: the image names something that does not exist, or needs uv, which is not installed here.
        BootstrapError: the lock cannot be read.
    """
    uv = Uv.if_installed()
    if uv is None and image.needs_uv:
        needing = "pip=..." if image.has_packages else f"python={image.python!r}"
        raise SpecError(f"Image({needing}) needs uv on this computer, from where it is sent to the nodes: `{INSTALL}`.")
    runtime, included, required = await asyncio.gather(
        in_thread(outrider_archive.build, abandon=True),
        in_thread(includes.scan, image, abandon=True),
        requirements.read(image, uv, packages),
    )
    secrets = secrets_in(image.env, image.pip_indexes, [volume.secrets for volume in volumes])
    texts = {secret.reveal() for secret in secrets}
    if required is not None:
        texts.update(required.variables.values(), *(_passwords(revealed(url)) for url in required.urls))
    return Prepared(image, python, runtime, included, required, uv, WheelCache(), shown_forms(texts), tuple(volumes))


@dataclass(frozen=True, slots=True)
class PythonChoice:
    """The Pythons of a host: one of its own for the installer, one for tasks."""

    installer: Python | None  # None: the host has no Python at all
    base: str  # for tasks: a path there, or a version that uv must fetch
    environment: bool  # whether uv makes an environment for tasks; otherwise they use ``base`` itself
    isolated: bool = True  # False: the environment also sees the packages of the interpreter that it is made of
    requirements: Requirements | None = None  # what the environment gets


def choose_python(prepared: Prepared, host: HostFacts) -> PythonChoice:
    requested, wanted = prepared.image.python, prepared.minor
    if requested.startswith("/"):
        chosen = next((python for python in host.pythons if python.is_requested), None)
        if chosen is None:
            raise _refused(
                f"Image(python={requested!r}) is not a Python there", "correct the path, or leave python out"
            )
        if not _fits(chosen, wanted):
            raise _other_python(chosen, wanted)
        return _on(prepared, chosen, isolated=False)
    exact = requested if requested.count(".") == 2 else None
    for python in host.pythons:
        if _fits(python, wanted) and exact in (None, python.version):
            return _on(prepared, python, isolated=prepared.image.has_packages)
    if prepared.uv is None:
        if host.pythons:
            raise _other_python(host.pythons[0], wanted)
        raise _refused("it has no python3", f"install Python {wanted} there, or {_BRING_IT}")
    able = next((each for each in host.pythons if tuple(map(int, each.minor.split("."))) >= _INSTALLER_PYTHON), None)
    return PythonChoice(able, exact or wanted, environment=True, requirements=_required(prepared, frozenset()))


def _on(prepared: Prepared, python: Python, *, isolated: bool) -> PythonChoice:
    """The choice of a Python of the host, whose own packages tasks see where the environment is not isolated."""
    required = _required(prepared, frozenset() if isolated else python.packages)
    if required is None:
        return PythonChoice(python, python.path, environment=False, isolated=not python.is_requested)
    if prepared.uv is None:
        lacking = ", ".join(required.text.split())
        raise _refused(
            f"{python.path} lacks packages that a plugin needs: {lacking}", f"install them there, or {_BRING_IT}"
        )
    return PythonChoice(python, python.path, environment=True, isolated=isolated, requirements=required)


def _required(prepared: Prepared, there: frozenset[str]) -> Requirements | None:
    """The image's requirements, and those of plugins that are not there."""
    if prepared.requirements is None:
        return None
    lacking = [each for each in prepared.requirements.of_plugins if hashes.name_of(each) not in there]
    return prepared.requirements.with_packages(lacking) if lacking or prepared.image.has_packages else None


def environment(prepared: Prepared, host: HostFacts, choice: PythonChoice, uv: str) -> dict[str, Any] | None:
    """The parameters for making an environment; None: tasks use ``choice.base``. ``uv``: its path in the cache."""
    if not choice.environment:
        return None
    wanted = choice.requirements or Requirements("")
    base = next((python.version for python in host.pythons if python.path == choice.base), "")
    packages = wanted.identity() if choice.requirements else None
    identity = [2, host.platform, choice.base, base, choice.isolated, packages]
    return {
        "digest": hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32],
        "python": choice.base,
        "isolated": choice.isolated,
        "uv": uv,
        "uv_env": wanted.uv_environment(),
        "indexes": [without_password(revealed(url)) for url in wanted.urls],
        "requirements": wanted.text,
        "constraints": wanted.constraints,
        "install": list(wanted.install_options),
        "offline": wanted.is_local or prepared.image.offline,
    }


def install_plan(
    prepared: Prepared, host: HostFacts, environment: dict[str, Any] | None, **of_this_node: Any
) -> dict[str, Any]:
    """The installer's whole plan as JSON values. The installer gets it on stdin, and stores none of it."""
    image = prepared.image
    return {
        **of_this_node,
        "cache": host.cache,
        "secrets": prepared.hidden,
        "apt": list(image.apt),
        "environment": environment,
        "files": [
            [place, file.copy.sha256, file.copy.size_bytes, file.executable]
            for place, file in prepared.includes.files.items()
        ],
        "paths": list(prepared.includes.paths),
        "volumes": [volume.order() for volume in prepared.volumes],
        "run": [command if isinstance(command, str) else list(command) for command in image.run],
        "env": revealed_env(image.env),
    }


def _passwords(url: str) -> list[str]:
    # Not by urlsplit: a password that should have been quoted ends its netloc, and is one to hide all the same.
    login, _, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    written = login.partition(":")[2]
    return [written, unquote(written)] if written else []


def _fits(python: Python, minor: str) -> bool:
    return python.minor == minor and python.implementation == "cpython"


def _other_python(python: Python, wanted: str) -> BootstrapError:
    shown = python.version if python.implementation == "cpython" else f"{python.implementation} {python.version}"
    reason = f"its Python is {shown} ({python.path}), and this program's is {wanted}, whose bytecode it cannot run"
    if python.is_requested:
        return _refused(reason, f"name a Python {wanted} there in Image(python=...), or leave python out")
    return _refused(reason, f"install Python {wanted} there, or run this program with {python.minor}, or {_BRING_IT}")


def _refused(reason: str, hint: str) -> BootstrapError:
    return bootstrap_error("python", f"the host cannot run tasks, because {reason}", hint=hint)
