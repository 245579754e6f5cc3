"""The plan of what to install on a host.

`prepare` reads the image once per pool. The other functions use what `probe` found out about each host.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from ...lazy_dataclass import dataclass
from ...providers.shared.threads import in_thread
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

# oldest Python that can run the installer; tasks need the same minor version of Python as the client
_INSTALLER_PYTHON = (3, 8)
_BRING_IT = f"`{INSTALL}` here: then it is brought along"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An image after all work that this computer can do before it knows the host.

    `bootstrap` installs it on each host.
    """

    image: Image
    python: str  # the version of this process's Python, such as "3.11.7"; nodes need the same minor version
    runtime: outrider_archive.OutriderArchive
    includes: Includes
    requirements: Requirements | None  # the packages to install; None: neither the image nor a plugin needs any
    uv: Uv | None  # None: uv is not installed on this computer, and it is not certain that it is needed
    wheel_cache: WheelCache  # wheels, and uv for other platforms; they are fetched when the first node needs them
    hidden: list[str]  # texts to hide in all output: the secrets, also in quoted and encoded form
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
    """Read the included files and the lock file, and build the runtime archive. May be cancelled at any time.

    ``packages``: the packages that each plugin needs.

    Raises:
        SpecError: the image names something that does not exist, or needs uv, which is not installed on this computer.
        BootstrapError: the lock file cannot be read.
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
    """The Pythons to use on a host: one for the installer, and one for tasks."""

    installer: Python | None  # runs the installer; None: the host has no suitable Python
    base: str  # the Python for tasks: a path on the host, or a version that uv installs
    environment: bool  # whether uv creates a virtual environment for tasks; if not, tasks use ``base`` itself
    isolated: bool = True  # False: the virtual environment also sees the packages of ``base``
    requirements: Requirements | None = None  # packages to install in the virtual environment


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
    """Return the choice for a host that already has a suitable Python.

    ``isolated`` False: tasks also see the packages that are installed in that Python.
    """
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
    """Return the image's requirements, and those packages of plugins that the host does not have. None: there are none.

    ``there``: the names of packages that the host has.
    """
    if prepared.requirements is None:
        return None
    lacking = [each for each in prepared.requirements.of_plugins if hashes.name_of(each) not in there]
    return prepared.requirements.with_packages(lacking) if lacking or prepared.image.has_packages else None


def environment(prepared: Prepared, host: HostFacts, choice: PythonChoice, uv: str) -> dict[str, Any] | None:
    """Return the parameters for creating a virtual environment. None: tasks use the interpreter ``choice.base``.

    ``uv``: the path of the uv binary inside the host's cache folder.
    """
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
    """Return the complete plan for the installer, as JSON values.

    The installer reads the plan from stdin and does not store it, because it contains secrets.
    """
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
    # Find the login without urlsplit: if the password contains an unquoted special character, urlsplit cuts it off.
    # Such a password must be hidden, too.
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
