"""Docker or Podman on one host, used through the command line: both accept the same arguments for everything needed
here.

Why not the API: Podman has an API only as a service that few hosts have enabled; the command handles a registry's
credentials, contexts and rootless set-ups; and over SSH the command needs no forwarded socket.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import anyio

from ...lazy_dataclass import dataclass
from ..cloud.calls import redacted
from ..cloud.inventory import time_of
from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError
from ..shared.login_host import AGAIN_S, COMMAND_S, Commands, Ended, Meaning, Place, interrupted, meant
from ..shared.login_options import LongOptions, OptionValue, as_words
from ..shared.nvidia_smi import QUERY, parse

if TYPE_CHECKING:
    from ..base import AcceleratorRequest, LaunchRequest

Pull = Literal["missing", "always", "never"]
DEVICES = "outrider:devices"  # the label with the numbers of a container's GPUs
FIRST_LEASE_S = 30.0  # seconds that a container's first lease is longer than later leases
# GB of /dev/shm if the pool requests no memory. It is only an upper limit, and costs nothing. The runtimes' default is
# 64 MB.
SHM_GB = 8
PULL_S = 1800.0  # seconds to fetch an image; some images have 20 GB
RUN_S = 120.0
AUTO = ("auto",)  # the first usable command is to be chosen
OLDEST = {"docker": (20, 10), "podman": (3, 0)}
NOT_RUN = (126, 127)  # exit codes with which a shell and timeout(1) report a command that is missing or cannot run
HERE = "this computer"
_GONE = "no such (container|object)|no container with"
_TAKEN = "name .* is already in use"
_NEVER = "(?!)"  # a pattern that matches nothing

# `ps` and `inspect` in one script. If a container ends between the two, `inspect` prints the other containers, and
# exits with an error.
_LIST = """\
ids=$("$@" ps --all --quiet --no-trunc --filter "label=$FILTER") || exit
[ -z "$ids" ] || "$@" inspect --type container $ids
"""
# Run in a new folder, and remove the folder afterwards: Podman's conmon leaves a file `oom` in its working directory.
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


class ContainersOptions(Protocol):
    """The options of `Containers` that a launch reads."""

    @property
    def image(self) -> str | None: ...

    @property
    def hosts(self) -> Collection[str] | None: ...

    @property
    def runtime(self) -> str | Sequence[str]: ...

    @property
    def network(self) -> bool | str: ...

    @property
    def pull(self) -> Pull: ...

    @property
    def volumes(self) -> Sequence[str]: ...

    @property
    def per_host(self) -> int | None: ...

    @property
    def options(self) -> Mapping[str, OptionValue] | LongOptions: ...

    @property
    def places(self) -> tuple[Place, ...]: ...

    @property
    def journal_place(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Container:
    """One container, as `inspect` shows it. ``state``: the runtime's own text, such as "running" or "exited"."""

    host: str  # the host, as the user names it; empty: this computer
    name: str
    state: str
    labels: Mapping[str, str]
    image: str = ""
    created_at: float = 0.0  # unix time
    address: str = ""  # the container's address in its network; empty: no address
    oom: bool = False
    exit_status: int = 0


@dataclass(slots=True, eq=False)
class Runtime:
    """Docker or Podman on one host. ``place``: the host and its login; None: this computer. ``argv``: the command, or
    `AUTO`.
    """

    host: str  # the host, as the user names it; empty: this computer
    place: Place | None
    commands: Commands
    argv: tuple[str, ...]
    # Time at which the host last listed its containers; before the first list, time at which this object was created.
    heard_at: float = field(default_factory=anyio.current_time)

    @property
    def zone(self) -> str:
        return self.host or HERE

    async def program(self) -> tuple[str, ...]:
        """Return the runtime's command, as words: the first command that `usable` returns."""
        self.argv = (await self.usable())[0]
        return self.argv

    async def usable(self) -> list[tuple[str, ...]]:
        """Return the configured command; for `AUTO`, those of docker and podman that can be used.

        If neither can be used, an error says why.
        """
        if self.argv != AUTO:
            return [self.argv]
        objections: dict[str, str] = {}
        for program in OLDEST:
            named = await self.commands.run([program, "--version"])
            if named.status not in NOT_RUN:
                server = await self.commands.run([program, "version", "--format", "{{.Server.Version}}"])
                objections[program] = objection(program, named.stdout, server)
        usable: list[tuple[str, ...]] = [(program,) for program, why in objections.items() if not why]
        if not usable:
            raise no_runtime(objections, self.commands.where)
        return usable

    async def containers(self, label: str) -> list[Container]:
        """List the containers with a label: ``"name"`` or ``"name=value"``."""
        ended = await self.commands.run(["env", f"FILTER={label}", "sh", "-c", _LIST, "sh", *await self.program()])
        self._check("ps", ended, _GONE if ended.stdout.strip().startswith("[") else _NEVER)
        self.heard_at = anyio.current_time()
        return read_containers(ended.stdout, self.host)

    async def fetch(self, image: str, pull: Pull) -> None:
        """Make sure that the host has an image, and fetch it if needed."""
        if pull != "always" and (await self._run("image", "inspect", "--format", "{{.Id}}", image)).status == 0:
            return
        if pull == "never":
            raise BadRequest(
                f"{self.zone} has no image {image}, and pull='never' lets nobody fetch it",
                advice="Pull or build it there, or leave pull= out.",
            )
        self._check(f"pull {image}", await self._run("pull", "--quiet", image, within_s=PULL_S))

    async def run(
        self,
        provider: ContainersOptions,
        request: LaunchRequest,
        *,
        name: str,
        labels: dict[str, str],
        devices: Sequence[int],
    ) -> None:
        """Start a container in the background. If a container has this name, an earlier call has already started it.

        Raises:
            ProviderError: If `failures.is_lost` returns True for the error, the container may have been started.
        """
        # On some hosts, `docker` is a link to Podman.
        podman = bool(devices) and "podman" in (await self._run("--version")).stdout.lower()
        words = run_words(provider, request, name=name, labels=labels, devices=devices, podman=podman)
        command = ["sh", "-c", _RUN, "sh", *await self.program(), "run", *words]
        self._check("run", await self.commands.run(command, within_s=RUN_S), _TAKEN)

    async def remove(self, names: Sequence[str]) -> None:
        """End and remove containers. It is no error if a container is missing, or is already being removed."""
        self._check("rm", await self._run("rm", "--force", "--volumes", *names), f"{_GONE}|already in progress")

    async def gpus(self, wanted: AcceleratorRequest) -> list[int]:
        """Return the numbers of the host's GPUs that fit the request. Raise BadRequest if fewer GPUs fit than are
        requested.
        """
        ended = await self.commands.run(["nvidia-smi", *QUERY])
        gpus = parse(ended.stdout) if ended.status == 0 else []  # without a driver, the command fails
        fitting = [each.index for each in gpus if wanted.fits(each.name, each.memory_gb)]
        if len(fitting) < wanted.count:
            has = ", ".join(sorted({each.name for each in gpus})) or "no GPU that its driver tells of"
            raise BadRequest(f"{self.zone} has not {wanted}: it has {has}", advice="`nvidia-smi -L` there lists them.")
        return fitting

    async def _run(self, *words: str, within_s: float = COMMAND_S) -> Ended:
        return await self.commands.run([*await self.program(), *words], within_s=within_s)

    def _check(self, what: str, ended: Ended, but: str = _NEVER) -> None:
        """Raise an error if a command has failed, unless its error output matches the pattern ``but``."""
        if ended.status != 0 and not re.search(but, ended.stderr, re.IGNORECASE):
            raise error_of(f"{self.argv[-1]} {what}", ended, self.commands.where)


# --- arguments of `docker run` or `podman run` ----------------------------------------------------------------------


def run_words(
    provider: ContainersOptions,
    request: LaunchRequest,
    *,
    name: str,
    labels: Mapping[str, str],
    devices: Sequence[int] = (),
    podman: bool = False,
) -> list[str]:
    """Return the arguments of `docker run`. ``devices``: the numbers of the GPUs; Podman and Docker have different
    options for them.
    """
    options = cast("LongOptions", provider.options)  # these options were checked when the provider was created
    words = ["--detach", "--rm", f"--name={name}"]
    words += [f"--label={key}={value}" for key, value in labels.items() if key != "Name"]
    if devices:
        words.append(f"--label={DEVICES}={','.join(map(str, devices))}")
    if provider.network is not True:
        words.append(f"--network={provider.network or 'none'}")
    if request.memory_gb:
        words.append(f"--memory={math.ceil(request.memory_gb * 1024)}m")
    if request.vcpus:
        words.append(f"--cpus={request.vcpus}")
    if not {"ipc", "shm-size"} & {option for option, _ in options}:
        words.append(f"--shm-size={math.ceil((request.memory_gb or 2 * SHM_GB) * 512)}m")
    if podman:
        words += [f"--device=nvidia.com/gpu={each}" for each in devices]
    elif devices:
        words.append(f'--gpus="device={",".join(map(str, devices))}"')
    words += [f"--volume={each}" for each in provider.volumes] + as_words(options)
    lease_s = (request.lease_s, FIRST_LEASE_S, request.max_lifetime_s or 0.0)
    process = [first_process(), "outrider", lease_file(name), *(str(math.ceil(each)) for each in lease_s)]
    return [*words, "--entrypoint=/bin/sh", image_of(provider, request), "-c", *process]


def image_of(provider: ContainersOptions, request: LaunchRequest) -> str:
    return request.container or provider.image or ""


def lease_file(name: str) -> str:
    return f"/tmp/{name}.lease"  # noqa: S108 (a path inside the container)


@cache
def first_process() -> str:
    return Path(__file__).with_name("first_process.sh").read_text()


# --- parsing of output, without I/O -----------------------------------------------------------------------------------


def objection(program: str, named: str, server: Ended) -> str:
    """Return why a command cannot be used; empty: it can be used. ``named``: the output of its ``--version``."""
    real = "podman" if "podman" in named.lower() else program  # on some hosts, `docker` is a link to Podman
    version = server.stdout.strip()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if server.status or numbers is None:
        return words_of(server.stderr or version) or "it does not say its version"
    oldest = OLDEST[real]
    if (int(numbers[1]), int(numbers[2])) < oldest:
        return f"{real} {version} is too old: it must be {oldest[0]}.{oldest[1]} or newer"
    return ""


def no_runtime(objections: Mapping[str, str], where: str) -> ProviderError:
    """Return the error for a host without a usable command. ``objections``: installed command -> the reason why it
    cannot be used.
    """
    if not objections:
        return BadRequest(
            f"There is neither Docker nor Podman {where}",
            code="NoRuntime",
            advice="Install one of them, or have the PATH of non-interactive logins lead to it.",
        )
    first, why = next(iter(objections.items()))
    error = error_of(first, Ended(1, "", why), where)
    if isinstance(error, HostAway) or type(error) is ProviderError:
        reasons = "; ".join(f"{program}: {each}" for program, each in objections.items())
        return BadRequest(f"No container runtime can be used {where}: {reasons}", code="Unusable", advice=error.advice)
    return error


def read_containers(text: str, host: str = "") -> list[Container]:
    return [_container(each, host) for each in json.loads(text)] if text.strip() else []


def _container(inspected: Mapping[str, Any], host: str) -> Container:
    state, config, network = (inspected.get(part) or {} for part in ("State", "Config", "NetworkSettings"))
    addresses = [each.get("IPAddress") for each in (network, *(network.get("Networks") or {}).values())]
    return Container(
        host=host,
        name=str(inspected.get("Name", "")).lstrip("/"),
        state=str(state.get("Status", "")),
        labels={str(key): str(value) for key, value in (config.get("Labels") or {}).items()},
        image=str(config.get("Image", "")),
        created_at=time_of(inspected.get("Created")) or 0.0,
        address=next((str(each) for each in addresses if each), ""),
        oom=bool(state.get("OOMKilled")),
        exit_status=int(state.get("ExitCode") or 0),
    )


# --- errors -----------------------------------------------------------------------------------------------------------
# Every error has the runtime's own words. If the daemon or the host did not respond, it is unknown whether the command
# had an effect, and the command may be repeated.

BUSY_S = 60.0
MOST = 400  # an error has at most this many characters of a command's output
_MEANINGS = (
    Meaning(
        NotAuthorized,
        "this user may not use Docker",
        "Add the user to the group `docker` there and log in anew, or write runtime=['sudo', '-n', 'docker'].",
        (r"permission denied.*(docker\.sock|docker daemon|podman\.sock|docker api)",),
    ),
    Meaning(
        HostAway,
        "Docker's daemon does not answer",
        "Start it there: `sudo systemctl start docker`.",
        ("cannot connect to the docker daemon|is the docker daemon running|error during connect",),
        AGAIN_S,
    ),
    Meaning(
        NotAuthorized,
        "the registry lets this user have no such image",
        "Look for a misspelling; of a private image, log in there with `docker login` or `podman login`.",
        ("pull access denied|requested access .* is denied|unauthorized|authentication required|denied: ",),
    ),
    Meaning(
        BadRequest,
        "there is no such image",
        "Look for a misspelling of its name and tag; an image that is there alone is not pulled with pull='never'.",
        (
            "manifest (for .* )?(unknown|not found)|name unknown|repository .*not found|image not known|no such image",
            "invalid reference format|short-name .* did not resolve",
        ),
    ),
    Meaning(NoCapacity, "the registry limits how often images are pulled", "", ("toomanyrequests|rate limit",), BUSY_S),
    Meaning(
        BadRequest,
        "the image has no shell, which the container's first process is",
        "Use an image that has /bin/sh: the `slim` ones do, `distroless` and `scratch` do not.",
        ('exec: "?/bin/sh"?.*(no such file|not found)|executable file .?/bin/sh.? not found',),
    ),
    Meaning(
        BadRequest,
        "the image is for another architecture than the host's",
        "Give the image of the host's architecture, or options={'platform': ...} where the host emulates another.",
        ("exec format error|no matching manifest|does not match the specified platform",),
    ),
    Meaning(
        BadRequest,
        "the host gives its GPUs to no container",
        "Install NVIDIA's container toolkit there; Podman needs `nvidia-ctk cdi generate` run there.",
        (r"could not select device driver|unresolvable cdi|nvidia\.com/gpu",),
    ),
    Meaning(
        BadRequest,
        "it is asked for more processors or memory than the host has, or may give",
        "Ask for less by Pool(vcpus=, memory_gb=); rootless Podman needs cgroup v2 with delegated controllers.",
        ("range of cpus is from|minimum memory limit|controller .*(not available|is not)|cgroup v2|cpu cfs quota",),
    ),
    Meaning(
        BadRequest,
        "it has no such option",
        "`docker run --help` or `podman run --help` there lists the names for Containers(options={...}).",
        ("unknown (shorthand )?flag|invalid argument .* for",),
    ),
    Meaning(NoCapacity, "the host's disk is full", "", ("no space left on device",), BUSY_S),
    Meaning(
        HostAway,
        "the registry is not reached",
        "",
        ("dial tcp|i/o timeout|no such host|tls handshake|connection refused|connection reset|eof$",),
        AGAIN_S,
    ),
)
_LOG = re.compile(r'^time="[^"]*" level=\w+ msg=')


def error_of(command: str, ended: Ended, where: str) -> ProviderError:
    """Return the error for a failed command, such as ``"podman pull"``. ``where``: a host, or ``"here"``."""
    output = words_of(ended.stderr or ended.stdout)
    quoted = f": {output}" if output else ""
    error = meant(output, _MEANINGS, lambda words: f"{command} {where} failed, as {words}{quoted}")
    error = error or interrupted(command, ended, where, quoted)
    return error or ProviderError(f"{command} {where} ended with status {ended.status}{quoted}")


def words_of(text: str) -> str:
    """Return the most relevant line of a command's output, shortened and without secrets: the last error, else the last
    line that is not a log line of the command.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    relevant = [line for line in lines if not _LOG.match(line) and not line.startswith(("See '", "Run '"))] or lines
    last = next(
        (line for line in reversed(relevant) if line.lower().startswith("error")), relevant[-1] if relevant else ""
    )
    return redacted(last[-MOST:])
