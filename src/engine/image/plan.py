"""Decide what is to be done on one host, from the image and the probe's findings. The agent carries it out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ..api.errors import BootstrapError
from ..api.secrets import revealed, revealed_env, shown_forms
from .advice import explained
from .prepare import Prepared
from .probe import HostFacts, Python
from .requirements import without_password
from .uv import index_environment

AGENT_PYTHON = (3, 8)  # the oldest that the agent runs on; tasks need the client's own minor version


@dataclass(frozen=True, slots=True)
class Choice:
    """The Pythons to use: one of the host's for the agent, one for tasks.

    ``base``: a path there, or a version that uv must fetch. ``isolated`` False: the environment also sees the packages
    of the interpreter that the user has named.
    """

    agent: Python | None  # None: the host has no Python at all
    base: str
    environment: bool  # whether uv makes an environment for tasks; otherwise they use ``base`` itself
    isolated: bool = True


def choose(prepared: Prepared, host: HostFacts) -> Choice:
    """Choose the Pythons of a host.

    Raises:
        BootstrapError: the host cannot have the right Python.
    """
    image, wanted = prepared.image, prepared.client.minor
    agent = next((python for python in host.pythons if python.is_at_least(*AGENT_PYTHON)), None)
    if image.python.startswith("/"):
        given = next((python for python in host.pythons if python.asked), None)
        if given is None:
            raise _refused(
                f"{image.python} is not a Python there", "name one that is, in Image(python=...), or leave python out"
            )
        if not _fits(given, wanted):
            raise _other_python(given, wanted)
        return Choice(given, given.path, environment=prepared.requirements is not None, isolated=False)
    exact = image.python if image.python.count(".") == 2 else None
    fitting = next(
        (python for python in host.pythons if _fits(python, wanted) and exact in (None, python.version)), None
    )
    if fitting is not None:
        return Choice(fitting, fitting.path, environment=prepared.requirements is not None)
    if prepared.uv is None:
        raise _no_python(host, wanted)
    return Choice(agent, exact or wanted, environment=True)


def environment(prepared: Prepared, host: HostFacts, choice: Choice, uv: str) -> dict[str, Any] | None:
    """The parameters for making an environment; None: tasks use ``choice.base``. ``uv``: its path in the cache."""
    if not choice.environment:
        return None
    wanted = prepared.requirements
    base = next((python.version for python in host.pythons if python.path == choice.base), "")
    identity = [1, host.platform, choice.base, base, choice.isolated, wanted.identity() if wanted else None]
    offline = prepared.image.offline
    if wanted is not None and wanted.is_local:
        offline = True
    urls = list(wanted.urls) if wanted else []
    options = [*wanted.options] if wanted else []
    return {
        "digest": hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32],
        "python": choice.base,
        "venv": [] if choice.isolated else ["--system-site-packages"],
        "uv": uv,
        "uv_env": {**index_environment(urls), **(wanted.variables if wanted else {})},
        "indexes": [without_password(revealed(url)) for url in urls],
        "requirements": wanted.text if wanted else "",
        "constraints": wanted.constraints if wanted else "",
        "install": options,
        "offline": offline,
    }


def order(
    prepared: Prepared,
    host: HostFacts,
    python: str,
    made: dict[str, Any] | None,
    *,
    runtime: str,
    machine: str,
    name: str,
    address: str | None,
    lease_s: float,
    lease_file: str,
    timeout_s: float,
) -> dict[str, Any]:
    """The agent's whole plan as JSON values. The agent gets it on stdin, and stores none of it."""
    image = prepared.image
    return {
        "cache": host.cache,
        "runtime": runtime,
        "machine": machine,
        "pool": name,
        "secrets": hidden(prepared),
        "apt": list(image.apt),
        "python": python,
        "environment": made,
        "files": [
            [place, file.copy.sha256, file.copy.size_bytes, file.executable]
            for place, file in prepared.includes.files.items()
        ],
        "paths": list(prepared.includes.paths),
        "volumes": [volume.order() for volume in prepared.volumes],
        "run": [command if isinstance(command, str) else list(command) for command in image.run],
        "env": revealed_env(image.env),
        "address": address,
        "lease_s": lease_s,
        "lease_file": lease_file,
        "timeout_s": timeout_s,
    }


def hidden(prepared: Prepared) -> list[str]:
    """Texts that no output may show: secrets in every form."""
    variables = prepared.requirements.variables.values() if prepared.requirements else ()
    values = {*prepared.secrets, *variables}
    for url in prepared.requirements.urls if prepared.requirements else ():
        values |= {*_passwords(revealed(url))}
    return shown_forms(values)


def _passwords(url: str) -> list[str]:
    """The password of a URL, as it is written there and decoded."""
    login, _, _ = url.partition("://")[2].partition("/")[0].rpartition("@")
    written = login.partition(":")[2]
    return [written, unquote(written)] if written else []


def _fits(python: Python, minor: str) -> bool:
    return python.minor == minor and python.implementation == "cpython"


def _no_python(host: HostFacts, wanted: str) -> BootstrapError:
    if not host.pythons:
        return _refused(
            "it has no python3",
            f"install Python {wanted} there, or `pip install 'outrider[image]'` here: then it is brought along",
        )
    return _other_python(host.pythons[0], wanted)


def _other_python(python: Python, wanted: str) -> BootstrapError:
    shown = python.version if python.implementation == "cpython" else f"{python.implementation} {python.version}"
    reason = f"its Python is {shown} ({python.path}), and this program's is {wanted}: functions cross as bytecode"
    if python.asked:
        return _refused(reason, f"name a Python {wanted} there in Image(python=...), or leave python out")
    return _refused(
        reason,
        f"install Python {wanted} there, or run this program with {python.minor}, or `pip install 'outrider[image]'` "
        "here: then it is brought along",
    )


def _refused(reason: str, hint: str) -> BootstrapError:
    return explained("python", f"the host cannot run tasks, because {reason}", hint=hint)
