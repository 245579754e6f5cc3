"""The plan of what to install on a host: the inspection of the host, and the decisions.

`prepare` reads the image once per pool. `PROBE_SCRIPT` is one command that inspects a host: it reports the host's
system, cache folder and Pythons, and `parse_probe` reads its output. The other functions decide from these facts what
to install.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from ...lazy_dataclass import dataclass
from ...providers.shared.threads import in_thread
from ..api.errors import BootstrapError, SpecError
from ..api.image import Image
from ..api.secrets import revealed, revealed_env, secrets_in, shown_forms
from ..api.volume import Volume
from . import includes, outrider_archive, requirements
from . import requirements as hashes
from .hints import INSTALL, bootstrap_error
from .includes import Includes
from .requirements import Requirements, Uv, without_password
from .wheels import WheelCache

# The script is sent to `sh` on stdin, so that no login shell has to parse it. Its arguments: the required minor version
# of Python, the path of an interpreter or "", and the names of packages to look for in each Python. The script is one
# function, because a command in it could otherwise read the rest of the script from stdin.
# The script runs each Python in isolated mode, but reports the packages that tasks will see: as `node.daemon` does, it
# adds the packages that the user has installed for himself.
# Programs in the cache folder are executed, some by this script itself. So the script first checks that no other user
# can write to the cache, before it uses anything there. It checks only folders, because a file cannot be replaced
# without write access to its folder.
PROBE_SCRIPT = b"""\
entries() {
    stat -c "%u 700 %n" "$cache" || echo "? ? $cache"
    stat -L -c "%u %a %n" "$cache" || echo "? ? $cache"
    cd "$cache" && stat -L -c "%u %a %n" runtime runtime/* envs envs/* uv uv/* uv-cache \\
        pythons pythons/* files volumes claims claims/* pools pools/*
} 2>/dev/null
exposed() {
    while read -r owner mode path; do
        case "$path" in /*) ;; *) path=$cache/$path ;; esac
        case "$owner $mode" in
            *[2367]? | *[2367]) echo "exposed $owner $mode $path" ;;
            "$1 "* | "0 "*) ;;
            *) echo "exposed $owner $mode $path" ;;
        esac
    done
}
probe() {
    minor=$1 asked=$2
    shift 2
    umask 077
    cache=${OUTRIDER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrider}
    echo  # a login may have printed a line without its end
    echo "outrider-probe 1"
    echo "system $(uname -s) $(uname -m)"
    echo "libc $(getconf GNU_LIBC_VERSION 2>/dev/null || echo other)"
    echo "user $(id -u)"
    echo "cache $cache"
    refusal=$(mkdir -p "$cache" 2>&1) || echo "refused $refusal"
    exposed=$(entries | exposed "$(id -u)")
    if [ -n "$exposed" ]; then
        echo "$exposed"
        echo "end"
        return
    fi
    refusal=$(: 2>&1 >"$cache/.writable") || echo "refused $refusal"
    df -Pk "$cache" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "free $free"; }
    for path in "$cache"/runtime/* "$cache"/uv/*; do echo "have ${path#"$cache"/}"; done
    seen=
    tell='import site, sys; print("%d.%d.%d" % sys.version_info[:3], sys.implementation.name, sys.executable)
if sys.base_prefix in site.PREFIXES:
    site.addsitedir(site.getusersitepackages())
for name in sys.argv[1:]:
    try:
        from importlib.metadata import version
        print("package", version(name) and name)
    except ImportError:
        pass'
    for python in ${asked:+"$asked"} "python$minor" "/usr/bin/python$minor" "/usr/local/bin/python$minor" \\
        python3 /usr/bin/python3 /usr/local/bin/python3 "$cache"/pythons/cpython-"$minor".*/bin/python"$minor"; do
        path=$(command -v "$python" 2>/dev/null) || continue
        case "$seen" in *":$path:"*) continue ;; esac
        seen="$seen:$path:"
        version=$("$path" -I -c "$tell" "$@" 2>/dev/null </dev/null) || continue
        if [ "$python" = "$asked" ]; then echo "asked $version"; break; fi
        echo "python $version"
        case "$version" in "$minor".*) break ;; esac
    done
    echo "end"
}
probe "$@" </dev/null
"""


class Python(NamedTuple):
    version: str  # such as "3.11.2"
    implementation: str  # such as "cpython"
    path: str
    is_requested: bool = False  # whether the user has named this interpreter in the image
    packages: frozenset[str] = frozenset()  # those of the packages in question that this Python has

    @property
    def minor(self) -> str:
        return self.version.rpartition(".")[0]


class HostFacts(NamedTuple):
    system: str  # such as "Linux"
    machine: str  # such as "x86_64"
    libc: str  # such as "glibc 2.36", or "other"
    uid: int
    cache: str
    refused: str  # why this user cannot write to the cache folder; empty: the user can
    # (user id, mode, path) of a place in the cache folder that other users can write to. Programs in the cache are then
    # not run. None: there is no such place.
    exposed: tuple[str, str, str] | None
    free_bytes: int | None
    present: frozenset[str]  # what the cache already has: "runtime/DIGEST" and "uv/DIGEST"
    pythons: tuple[Python, ...]  # the most suitable Python first

    @property
    def platform(self) -> str:
        """The host's platform, for names in its cache folder.

        Compiled files can be used on all hosts of the same platform.
        """
        return f"{self.system}-{self.machine}-{self.libc.replace(' ', '-')}".lower()


def probe_arguments(minor: str, requested: str, packages: Iterable[str] = ()) -> list[str]:
    return ["sh", "-s", "--", minor, requested, *packages]


def parse_probe(stdout: bytes) -> HostFacts:
    """Parse the output of the probe script. Lines before and after it, which a login shell may print, are skipped.

    Raises:
        ValueError: the script did not run to its end.
    """
    lines = stdout.decode(errors="replace").splitlines()
    if "outrider-probe 1" not in lines or "end" not in lines[lines.index("outrider-probe 1") :]:
        raise ValueError("the probe did not run to its end")
    del lines[len(lines) - 1 - lines[::-1].index("end") :]
    facts: dict[str, str] = {}
    present: list[str] = []
    pythons: list[Python] = []
    for line in lines[lines.index("outrider-probe 1") + 1 :]:
        word, _, rest = line.partition(" ")
        if word == "have":
            present.append(rest)
        elif match := re.fullmatch(r"(?:python|asked) (\d+\.\d+\.\d+) (\S+) (.+)", line, re.ASCII):
            pythons.append(Python(match[1], match[2], match[3], is_requested=word == "asked"))
        elif word == "package" and pythons:
            pythons[-1] = pythons[-1]._replace(packages=pythons[-1].packages | {rest})
        elif word not in facts:  # an error of several lines may repeat a keyword: use the first
            facts[word] = rest
    system, _, machine = facts.get("system", "").partition(" ")
    owner, mode, path = facts.get("exposed", "  ").split(" ", 2)
    libc, free = facts.get("libc", ""), facts.get("free", "")
    return HostFacts(
        system=system,
        machine=machine,
        libc=libc if re.fullmatch(r"glibc \d+\.\d+(\.\d+)?", libc, re.ASCII) else "other",
        uid=int(facts.get("user", "-1")),
        cache=facts.get("cache", ""),
        refused=facts.get("refused", ""),
        exposed=(owner, mode, path) if owner else None,
        free_bytes=int(free) * 1024 if free.isdecimal() else None,
        present=frozenset(present),
        pythons=tuple(pythons),
    )


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
    uv: Uv | None  # None: uv is not installed on this computer; the image may not need it
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
