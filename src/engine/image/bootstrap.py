"""Installation of a prepared image on one host: inspect the host, send Outrider's code, run the installer.

The installation may be repeated, and it may be cancelled at any time.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Unpack

from ...providers.shared.threads import in_thread
from ..api.errors import BootstrapError
from ..api.secrets import Scrubber
from . import install_plan, wheels
from . import requirements as hashes
from .cache import Copy
from .commands import CommandResult, CommandRunner
from .hints import LOG_LINES, Facts, bootstrap_error, no_shell
from .install_plan import HostFacts, Prepared
from .installer import protocol
from .requirements import Requirements, Uv

# characters that are replaced in folder names; a colon would separate the paths in PATH-like variables
_NOT_IN_PATHS = re.compile(r"[^A-Za-z0-9@._-]")
_PIECE_BYTES = 256 << 10
# Maximum number of unanswered requests from an installer. A correct installer sends one request at a time.
_MOST_REQUESTS = 1000
# larger files are sent uncompressed, because most of them are wheels, which are already compressed
_PACKED_BYTES = 8 << 20
# The installer's time limit is shorter than the client's by this number of seconds, so that the installer can still
# report what it was doing.
_CEDE_S = 2.0

# One-line shell scripts without nested quotes, because login shells parse nested quotes in different ways.
_UNPACK = (
    'umask 077; mkdir -p "$1" && cd "$1" && t=$(mktemp -d ".$2.XXXXXX") || exit 1; trap "rm -rf $t" EXIT; '
    'tar -xzf - -C "$t" && if [ -e "$2" ]; then :; else mv -T "$t" "$2" || [ -e "$2" ]; fi'
)

# Put before a command, it makes the files that the command creates writable only for this user, whatever umask the
# login has set.
_PRIVATELY = ("sh", "-c", 'umask 077; exec "$@"', "sh", "env")


class Phase(NamedTuple):
    """The progress of a bootstrap phase.

    ``text``: the current activity if ``state`` is "started"; a line of output if it is "line".
    """

    # "probe", "upload", "python", "apt", "packages", "files", "volumes", "run" or "executor"; phases have this order
    name: str
    state: Literal["started", "line", "finished"]
    text: str = ""
    seconds: float = 0.0  # time since the phase began; only set when it is finished


class Bootstrapped(NamedTuple):
    """The result of a bootstrap: the executor (the node's daemon) is running. All fields are paths on the node."""

    executor_socket: str  # Unix socket on which the executor listens
    python: str  # the Python interpreter for tasks
    runtime: str  # archive with Outrider's code for nodes; run it as ``<python> -I <runtime> bridge <executor_socket>``


async def bootstrap(
    host: CommandRunner,
    prepared: Prepared,
    *,
    pool: str,
    machine: str,
    node: int | str,
    address: str | None,
    lease_s: float,
    lease_file: str = "",
    progress: Callable[[Phase], None] = lambda _: None,
) -> Bootstrapped:
    """Install the image on the host, and start the executor (the node's daemon) for node ``node`` of ``pool``.

    The time limit is the image's ``bootstrap_timeout``. If this call is cancelled or the connection is lost, all
    processes that it started on the host end. A later call uses the files that are already on the host.

    Args:
        host: Runs commands on the host.
        prepared: The image.
        pool: The pool's id.
        machine: Identifies the host within the pool. Executors of earlier nodes of the pool on this host are ended.
        node: The node's number.
        address: The node's address for the other nodes of the pool; None: the node determines its address itself.
        lease_s: The executor ends itself after this time without a message from its client, in seconds.
        lease_file: A file on the host that the executor updates, and that keeps the machine alive; empty: none.
        progress: Called for each step.

    Raises:
        BootstrapError: this host or this image cannot be used; the error contains advice.
        ConnectionError: the connection was lost; try again.
    """
    machine = f"{pool}-{_NOT_IN_PATHS.sub('_', machine)}"
    of_this_node = {
        "machine": machine,
        "node": f"{machine}~{node}",
        "address": address,
        "lease_s": lease_s,
        "lease_file": lease_file,
    }
    work = _Bootstrap(host, prepared, progress)
    try:
        async with asyncio.timeout(prepared.image.bootstrap_timeout):
            return await work.run(of_this_node)
    except TimeoutError:
        raise work.error(work.late, log=work.lines, timed_out=True) from None


class _Bootstrap:
    def __init__(self, host: CommandRunner, prepared: Prepared, progress: Callable[[Phase], None]) -> None:
        self._host, self.prepared, self._progress = host, prepared, progress
        self._scrub = Scrubber(prepared.hidden)
        self.phase = "probe"
        self.lines: list[str] = []  # output lines of the current phase
        self._deadline = time.monotonic() + prepared.image.bootstrap_timeout

    async def run(self, of_this_node: Mapping[str, Any]) -> Bootstrapped:
        prepared = self.prepared
        with self._during("probe"):
            host = await self._probe()
            choice = install_plan.choose_python(prepared, host)
            uv = None
            if choice.environment:
                assert prepared.uv is not None, "without it there is no such choice"
                uv = await prepared.wheel_cache.uv_for(prepared.uv, wheels.uv_target(host.machine, host.libc))
        runtime, uv_folder = f"runtime/{prepared.runtime.digest}", "" if uv is None else uv.in_cache
        missing = {} if runtime in host.present else {runtime: prepared.runtime.data}
        if uv is not None and uv_folder not in host.present:
            missing[uv_folder] = await prepared.wheel_cache.packed(uv)
        if missing:
            size = sum(map(len, missing.values()))
            with self._during("upload", f"{size / 1e6:.1f} MB"):
                # the archive and its unpacked files together need up to four times the size of the archive
                if host.free_bytes is not None and host.free_bytes < 4 * size:
                    reason = f"only {host.free_bytes / 1e6:.0f} MB are free in {host.cache}"
                    raise self.error(reason, log=["No space left on device"])
                await asyncio.gather(*(self._upload(host, path, data) for path, data in missing.items()))
        if choice.installer is None:
            with self._during("python", f"Python {choice.base}, from uv"):
                python = await self._fetch_python(host, choice.base, uv_folder)
        else:
            python = choice.installer.path
        plan = install_plan.install_plan(
            prepared,
            host,
            install_plan.environment(prepared, host, choice, f"{uv_folder}/uv"),
            **of_this_node,
            python=choice.base,
            runtime=f"{host.cache}/{runtime}",
            timeout_s=max(self._deadline - time.monotonic() - _CEDE_S, 0.1),
        )
        return await self._install(host, python, plan, choice.requirements)

    # --- before the installer runs ----------------------------------------------------------------------------------

    async def _probe(self) -> HostFacts:
        python = self.prepared.image.python
        required = self.prepared.requirements
        packages = () if required is None else map(hashes.name_of, required.of_plugins)
        argv = install_plan.probe_arguments(self.prepared.minor, python if python.startswith("/") else "", packages)
        ended = await self._host.run(argv, stdin=install_plan.PROBE_SCRIPT)
        try:
            host = install_plan.parse_probe(ended.stdout)
        except ValueError as error:
            reason = f"the host does not run a shell script as it should (`sh -s` ended with {ended.how})"
            raise self._failed(reason, ended, "sh -s", no_shell(ended.stdout, ended.stderr, ended.status)) from error
        if host.system != "Linux":
            raise self.error(f"the host's system is {host.system or 'unknown'}", hint="use hosts that run Linux")
        if host.refused:
            raise self.error(f"the cache {host.cache} cannot be written", log=host.refused.splitlines())
        if host.exposed:
            owner, mode, path = host.exposed
            whose = f"uid {owner}, mode {mode}" if owner != "?" else "nobody can say whose it is"
            raise self.error(
                f"the cache {host.cache} cannot be trusted, because somebody else may have written what would be run "
                f"from it: {path} ({whose}; this user is uid {host.uid})",
                hint=f"remove {path} there, or set OUTRIDER_CACHE in the host's environment to a folder in which only "
                "this user can write",
            )
        return host

    async def _upload(self, host: HostFacts, path: str, data: bytes) -> None:
        folder, _, name = path.partition("/")
        ended = await self._host.run(["sh", "-c", _UNPACK, "upload", f"{host.cache}/{folder}", name], stdin=data)
        if ended.status != 0:
            raise self._failed(f"{path} could not be unpacked in {host.cache}", ended, f"tar -xzf - -C {folder}")

    async def _fetch_python(self, host: HostFacts, version: str, uv: str) -> str:
        """Install Python with uv on a host that has no suitable Python. Return the path of the interpreter."""
        binary, place = f"{host.cache}/{uv}/uv", f"{host.cache}/pythons"
        env = (*_PRIVATELY, f"UV_CACHE_DIR={host.cache}/uv-cache", f"UV_PYTHON_INSTALL_DIR={place}", "UV_NO_PROGRESS=1")
        for words in (["install", "--no-bin", version], ["find", "--managed-python", "--no-project", version]):
            ended = await self._host.run([*env, binary, "python", *words])
            if ended.status != 0:
                minor, command = ".".join(version.split(".")[:2]), f"uv python {shlex.join(words)}"
                hint = f"install Python {minor} there, or in the image of a container: it has none, and does not get it"
                raise self._failed(f"{command} ended with {ended.how}", ended, command, hint)
        output = ended.stdout.decode(errors="replace").strip()
        # the login shell may print other text before and after the path
        paths = re.findall(rf"{re.escape(place)}/[^\r\n]+", output)
        return paths[-1] if paths else output.rpartition("\n")[2]

    # --- the installer ----------------------------------------------------------------------------------------------

    async def _install(
        self, host: HostFacts, python: str, plan: dict[str, Any], required: Requirements | None
    ) -> Bootstrapped:
        session = _InstallerSession(self, host, plan, required)
        argv = [python, "-I", plan["runtime"], "install"]
        try:
            ended = await self._host.run(argv, stdin=session.stdin(), output=session.on_output)
        finally:
            session.close()
        if session.outcome is None:
            raise self._failed(f"the installer ended with {ended.how}", ended, shlex.join(argv))
        if isinstance(session.outcome, BootstrapError):
            raise session.outcome
        return session.outcome

    def on_phase(self, phase: Phase) -> None:
        if phase.state == "started":
            self.phase, self.lines = phase.name, []
        elif phase.state == "line":
            self.lines = [*self.lines[-LOG_LINES:], phase.text]
        self._progress(phase)

    @contextmanager
    def _during(self, name: str, text: str = "") -> Iterator[None]:
        began = time.monotonic()
        self.on_phase(Phase(name, "started", text))
        yield
        self.on_phase(Phase(name, "finished", "", time.monotonic() - began))

    # --- errors -----------------------------------------------------------------------------------------------------

    @property
    def late(self) -> str:
        return f"it took longer than {self.prepared.image.bootstrap_timeout:g} s"

    def _failed(self, reason: str, ended: CommandResult, command: str, hint: str = "") -> BootstrapError:
        log = [line for output in (ended.stdout, ended.stderr) for line in output.decode(errors="replace").splitlines()]
        return self.error(reason, command=command, exit_status=ended.status, log=log, hint=hint)

    def error(self, reason: str, **facts: Unpack[Facts]) -> BootstrapError:
        return bootstrap_error(self.phase, reason, scrub=self._scrub, **facts)


class _InstallerSession:
    """The conversation with one installer. The installer requests files, and the client sends them."""

    def __init__(self, work: _Bootstrap, host: HostFacts, plan: dict[str, Any], required: Requirements | None) -> None:
        self._work, self._host, self._plan, self._required = work, host, plan, required
        self._frames = protocol.Lines()
        self._wanted: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._sources: dict[str, wheels.Wheel | Copy] = {
            file.copy.sha256: file.copy for file in work.prepared.includes.files.values()
        }
        # the first outcome that arrives; later outcomes are ignored
        self.outcome: Bootstrapped | BootstrapError | None = None

    def close(self) -> None:
        self._wanted.put_nowait(None)

    def _decide(self, outcome: Bootstrapped | BootstrapError) -> None:
        self.outcome = self.outcome or outcome
        self.close()

    def _broken(self, why: str) -> None:
        hint = "see what runs on that host: Outrider's installer does not say this"
        self._decide(self._work.error(f"the installer broke its protocol: {why}", log=self._work.lines, hint=hint))

    def on_output(self, data: bytes) -> None:
        try:
            for frame in () if self.outcome else self._frames.feed(data):
                self._take(frame)
        except (KeyError, TypeError, ValueError) as error:
            self._broken(str(error))

    def _take(self, frame: dict[str, Any]) -> None:
        work = self._work
        match frame["is"]:
            case "phase":
                name, text = str(frame["name"]), str(frame["text"])
                work.on_phase(Phase(name, frame["state"], text, float(frame["seconds"])))
            case "need":
                if self._wanted.qsize() >= _MOST_REQUESTS:
                    raise ValueError("it asks for more than it waits for")
                if not all(isinstance(digest, str) for digest in frame.get("files", ())):
                    raise ValueError("it asks for files by what is no text")
                self._wanted.put_nowait(frame)
            case "result":
                self._decide(Bootstrapped(str(frame["socket"]), str(frame["python"]), str(frame["runtime"])))
            case "failed":
                work.phase = str(frame["phase"])
                status, timed_out = frame["exit_status"], bool(frame["timed_out"])
                error = work.error(
                    work.late if timed_out else str(frame["reason"]),
                    command=str(frame["command"]) or None,
                    exit_status=status if isinstance(status, int) else None,
                    log=[str(line) for line in frame["log"]] or work.lines,
                    hint=str(frame["hint"]),
                    timed_out=timed_out,
                )
                self._decide(error)

    async def stdin(self) -> AsyncIterator[bytes]:
        """Yield the bytes for the installer's stdin.

        stdin is kept open while the installer works, because the installer exits when its stdin is closed.
        """
        uv, requirements = self._work.prepared.uv, self._required
        yield protocol.encode("plan", **self._plan)
        try:
            while (wanted := await self._wanted.get()) is not None:
                if wanted.get("wheels"):
                    if uv is None or requirements is None or self._plan["environment"] is None:
                        self._broken("it asks for packages, and the image has none")
                        return
                    yield await self._wheels(uv, requirements)
                for digest in wanted.get("files", ()):
                    if digest not in self._sources:
                        self._broken(f"it asks for a file that the image does not have: {digest!r:.80}")
                        return
                    async for part in _file(self._sources[digest]):
                        yield part
        except BootstrapError as error:
            self._decide(error)
        except OSError as error:
            hint = "try again when nobody writes to it"
            self._decide(self._work.error(f"a file could not be sent: {error}", hint=hint))

    async def _wheels(self, uv: Uv, requirements: Requirements) -> bytes:
        prepared, host, base = self._work.prepared, self._host, self._plan["environment"]["python"]
        python = next((each.version for each in host.pythons if each.path == base), prepared.minor)
        target = wheels.wheel_target(host.machine, host.libc)
        self._work.on_phase(Phase("packages", "line", f"resolving for {target}, Python {python}, on this computer"))
        chosen = await prepared.wheel_cache.select(uv, requirements, target, python)
        self._sources |= {wheel.sha256: wheel for wheel in chosen.wheels}
        listed = [(wheel.name, wheel.sha256, wheel.size_bytes) for wheel in chosen.wheels]
        return protocol.encode("wheels", requirements=chosen.requirements, wheels=listed)


async def _file(source: wheels.Wheel | Copy) -> AsyncIterator[bytes]:
    """Yield one file as a frame, in pieces. A small file is compressed if compression makes it smaller."""
    size = source.size_bytes
    if size <= _PACKED_BYTES:
        data = await in_thread(source.read, 0, size, abandon=True)
        smaller = zlib.compress(data, 6)
        is_packed = len(smaller) < len(data)
        yield protocol.encode("file", smaller if is_packed else data, sha256=source.sha256, packed=is_packed)
        return
    yield json.dumps({"is": "file", "bytes": size, "sha256": source.sha256}).encode() + b"\n"
    sent = 0
    while sent < size:
        data = await in_thread(source.read, sent, _PIECE_BYTES, abandon=True)
        if not data:
            raise OSError(f"{getattr(source, 'path', source.sha256)} became shorter while it was sent")
        sent += len(data)
        yield data
