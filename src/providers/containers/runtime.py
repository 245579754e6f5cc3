"""Docker or Podman on one host, by its own command: the two take the same words for all that is needed here.

The command is used and not its API: Podman has no API without a service that few have turned on; a registry's
credentials, contexts and rootless set-ups are the command's business; and over SSH it needs no forwarded socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...lazy_dataclass import dataclass
from ..cloud.listed import time_of
from ..errors import BadRequest, HostAway, ProviderError
from ..login_host import COMMAND_S, Commands, Ended, Place
from ..nvidia_smi import QUERY, Device, parse
from .errors import error_of, words_of

PULL_S = 1800.0  # images of 20 GB exist
RUN_S = 120.0
OLDEST = {"docker": (20, 10), "podman": (3, 0)}
NOT_RUN = (126, 127)  # how a shell, and timeout(1), say that there is no such command
HERE = "this computer"
_GONE = re.compile(r"no such (container|object)|no container with", re.IGNORECASE)
_TAKEN = re.compile(r"name .* is already in use", re.IGNORECASE)

# Both commands at one go: `inspect` of containers of which one has just ended prints those that are left, and fails.
_LIST = """\
ids=$("$@" ps --all --quiet --no-trunc --filter "label=$FILTER") || exit
[ -z "$ids" ] || "$@" inspect --type container $ids
"""
# The folder is gone when the container runs: Podman's conmon leaves a file `oom` in the one in which it was started.
_RUN = """\
for word; do
    shift
    case $word in --*=./* | --*=../*) word=${word%%=*}=$PWD/${word#*=} ;; esac
    set -- "$@" "$word"
done
folder=$(mktemp -d) && cd "$folder" || exit
"$@"
status=$?
rmdir "$folder"
exit $status
"""


@dataclass(frozen=True, slots=True)
class Container:
    """One container, as `inspect` describes it. ``state``: in its words, such as "running" or "exited"."""

    name: str
    state: str
    labels: Mapping[str, str]
    image: str = ""
    created_at: float = 0.0  # unix time
    address: str = ""  # in its network, if it has one
    oom: bool = False
    exit_status: int = 0


@dataclass(slots=True, eq=False)
class Runtime:
    """One host's. ``place``: the way there; None: it is this computer. ``argv``: the command; None: the one found."""

    host: str  # as users name it; empty: this computer
    place: Place | None
    commands: Commands
    argv: tuple[str, ...] | None

    @property
    def zone(self) -> str:
        """The host's name for people."""
        return self.host or HERE

    async def program(self) -> tuple[str, ...]:
        """Return the words of the command.

        Raises:
            ProviderError: there is none that can be used.
        """
        if self.argv is None:
            self.argv = (await self.usable())[0]
        return self.argv

    async def usable(self) -> list[tuple[str, ...]]:
        """Return the command that was given, or those of the two that the host has and that can be used.

        Raises:
            ProviderError: there is none; says what there is.
        """
        if self.argv is not None:
            return [self.argv]
        objections: dict[str, str] = {}
        for program in OLDEST:
            named = await self.commands.run([program, "--version"])
            if named.status not in NOT_RUN:
                server = await self.commands.run([program, "version", "--format", "{{.Server.Version}}"])
                objections[program] = objection(program, named.stdout, server)
        found: list[tuple[str, ...]] = [(program,) for program, why in objections.items() if not why]
        if not found:
            raise no_runtime(objections, self.commands.where)
        return found

    async def is_podman(self) -> bool:
        """Return whether it is Podman, under whatever name: it takes other words for GPUs."""
        return "podman" in (await self._run("--version")).stdout.lower()

    async def containers(self, label: str) -> list[Container]:
        """List the containers that have a label: ``"name"`` or ``"name=value"``."""
        words = ["env", f"FILTER={label}", "sh", "-c", _LIST, "sh", *await self.program()]
        ended = await self.commands.run(words)
        if ended.status and not (ended.stdout.strip().startswith("[") and _GONE.search(ended.stderr)):
            raise await self._error("ps", ended)
        return read_containers(ended.stdout)

    async def has_image(self, image: str) -> bool:
        return not (await self._run("image", "inspect", "--format", "{{.Id}}", image)).status

    async def pull(self, image: str) -> None:
        ended = await self._run("pull", "--quiet", image, within_s=PULL_S)
        if ended.status:
            raise await self._error(f"pull {image}", ended)

    async def run(self, words: Sequence[str]) -> None:
        """Start a container in the background. One that has its name already is the same, of an earlier try.

        Raises:
            ProviderError: as `failures.is_lost` says, it may have been started all the same.
        """
        command = ["sh", "-c", _RUN, "sh", *await self.program(), "run", *words]
        ended = await self.commands.run(command, within_s=RUN_S)
        if ended.status and not _TAKEN.search(ended.stderr):
            raise await self._error("run", ended)

    async def remove(self, names: Sequence[str]) -> None:
        """End and remove containers. One that is not there, or is being removed, is no error."""
        ended = await self._run("rm", "--force", "--volumes", *names)
        if ended.status and not (_GONE.search(ended.stderr) or "already in progress" in ended.stderr):
            raise await self._error("rm", ended)

    async def gpus(self) -> list[Device]:
        """Return the GPUs of the host, if it has a driver for them."""
        ended = await self.commands.run(["nvidia-smi", *QUERY])
        return [] if ended.status else parse(ended.stdout)

    async def _run(self, *words: str, within_s: float = COMMAND_S) -> Ended:
        return await self.commands.run([*await self.program(), *words], within_s=within_s)

    async def _error(self, what: str, ended: Ended) -> ProviderError:
        return error_of(f"{(await self.program())[-1]} {what}", ended, self.commands.where)


# --- what the commands print, read without I/O ------------------------------------------------------------------------


def objection(program: str, named: str, server: Ended) -> str:
    """Return why a command cannot be used; empty: it can. ``named``: what its ``--version`` says."""
    real = "podman" if "podman" in named.lower() else program  # `docker` may be Podman under that name
    version = server.stdout.strip()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if server.status or numbers is None:
        return words_of(server.stderr or version) or "it does not say its version"
    oldest = OLDEST[real]
    if (int(numbers[1]), int(numbers[2])) < oldest:
        return f"{real} {version} is too old: it must be {oldest[0]}.{oldest[1]} or newer"
    return ""


def no_runtime(objections: Mapping[str, str], where: str) -> ProviderError:
    """Return the error of a host on which no command can be used. ``objections``: why not, of those that it has."""
    if not objections:
        return BadRequest(
            f"There is neither Docker nor Podman {where}",
            code="NoRuntime",
            advice="Install one of them, or have the PATH of non-interactive logins lead to it.",
        )
    first, why = next(iter(objections.items()))
    error = error_of(first, Ended(1, "", why), where)
    if isinstance(error, HostAway) or type(error) is ProviderError:
        said = "; ".join(f"{program}: {each}" for program, each in objections.items())
        return BadRequest(f"No container runtime can be used {where}: {said}", code="Unusable", advice=error.advice)
    return error


def read_containers(text: str) -> list[Container]:
    return [_container(each) for each in json.loads(text)] if text.strip() else []


def _container(said: Mapping[str, Any]) -> Container:
    state, config = said.get("State") or {}, said.get("Config") or {}
    return Container(
        name=str(said.get("Name", "")).lstrip("/"),
        state=str(state.get("Status", "")),
        labels={str(key): str(value) for key, value in (config.get("Labels") or {}).items()},
        image=str(config.get("Image", "")),
        created_at=time_of(said.get("Created")) or 0.0,
        address=_address(said.get("NetworkSettings") or {}),
        oom=bool(state.get("OOMKilled")),
        exit_status=int(state.get("ExitCode") or 0),
    )


def _address(settings: Mapping[str, Any]) -> str:
    if settings.get("IPAddress"):
        return str(settings["IPAddress"])
    networks = settings.get("Networks") or {}
    return next((str(each["IPAddress"]) for each in networks.values() if each.get("IPAddress")), "")
