"""Bring a prepared image onto one host, over any `Shell`: probe, runtime, agent. Idempotent; safe to cancel."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...providers.threads import in_thread
from ..api.errors import BootstrapError
from ..api.secrets import Scrubber
from . import plan, probe, wheels
from .advice import LOG_LINES, explained
from .agent import frames
from .file_copies import Copy
from .phase import Phase
from .prepare import ClientFacts, Prepared, prepare
from .probe import HostFacts
from .requirements import Requirements
from .shell import Exit, Shell
from .uv import Uv

__all__ = ["Bootstrapped", "ClientFacts", "Phase", "Prepared", "bootstrap", "prepare"]

_NOT_IN_PATHS = re.compile(
    r"[^A-Za-z0-9@._-]"
)  # the folder's name is put into lists of paths, which a colon would separate
_PIECE_BYTES = 256 << 10
NEEDS = 1000  # requests of an agent that may wait for an answer; it sends one at a time
FAILURE = ("phase", "reason", "command", "exit_status", "log", "hint", "timed_out")  # fields of an agent's "failed"
_PACKED_BYTES = 8 << 20  # larger files are sent as they are: wheels are compressed already
_CEDE_S = 2.0  # the agent gives up so much before the client does, and reports what it was doing

# One line each, without quotes inside that some login shells read differently.
_UNPACK = (
    'umask 077; mkdir -p "$1" && cd "$1" && t=$(mktemp -d ".$2.XXXXXX") || exit 1; trap "rm -rf $t" EXIT; '
    'tar -xzf - -C "$t" && if [ -e "$2" ]; then :; else mv -T "$t" "$2" || [ -e "$2" ]; fi'
)

# Put before a command so that nobody else can write in what it makes, whatever the login's umask.
_PRIVATELY = ("sh", "-c", 'umask 077; exec "$@"', "sh", "env")

Progress = Callable[[Phase], None]


class Bootstrapped(NamedTuple):
    """A node whose executor runs. All values are paths on the node."""

    executor_socket: str  # the path of the executor's unix socket
    python: str  # the tasks' interpreter
    runtime: str  # the archive to run: ``<python> -I <runtime> bridge <executor_socket>``


async def bootstrap(
    shell: Shell,
    prepared: Prepared,
    *,
    pool: str,
    machine: str,
    node: int | str,
    address: str | None,
    lease_s: float,
    lease_file: str = "",
    progress: Progress = lambda _: None,
) -> Bootstrapped:
    """Leave the host with a running executor for ``pool``'s ``node``, within the image's ``bootstrap_timeout``.

    ``machine`` identifies the host within the pool: executors that earlier nodes of the pool left there are ended.
    ``address``: how the pool's other nodes reach this one; None: it finds out itself. ``lease_file``: a file there that
    keeps the machine alive while the executor renews it; empty: none. When this is cancelled or the connection is
    lost, everything it started on the host ends; a further call goes on with what is there already.

    Raises:
        BootstrapError: this host, or this image, cannot do it; says what to do.
        ConnectionError: the connection was lost; try again.
    """
    work = _Bootstrap(shell, prepared, progress)
    limit_s = prepared.image.bootstrap_timeout
    try:
        async with asyncio.timeout(limit_s):
            return await work.run(f"{pool}-{_NOT_IN_PATHS.sub('_', machine)}", node, address, lease_s, lease_file)
    except TimeoutError:
        raise work.hung() from None


class _Bootstrap:
    def __init__(self, shell: Shell, prepared: Prepared, progress: Progress) -> None:
        self._shell, self._prepared = shell, prepared
        self._scrub = Scrubber(plan.hidden(prepared))
        self._report = progress
        self._phase = "probe"
        self._lines: list[str] = []  # printed in the present phase
        self._deadline = time.monotonic() + prepared.image.bootstrap_timeout

    async def run(
        self, machine: str, node: int | str, address: str | None, lease_s: float, lease_file: str
    ) -> Bootstrapped:
        prepared = self._prepared
        runtime = f"runtime/{prepared.runtime.digest}"
        with self._during("probe"):
            host, choice, tool = await self._survey(runtime)
        uv = "" if tool is None else tool.place
        missing = [] if runtime in host.present else [(runtime, prepared.runtime.data)]
        if tool is not None and uv not in host.present:
            missing.append((uv, await prepared.wheel_cache.packed(tool)))
        if missing:
            size = sum(len(data) for _, data in missing)
            with self._during("upload", f"{size / 1e6:.1f} MB"):
                self._room(host, size)
                await asyncio.gather(*(self._upload(host, path, data) for path, data in missing))
        if choice.agent is None:
            with self._during("python", f"Python {choice.base}, from uv"):
                agent = await self._fetch_python(host, choice.base, uv)
        else:
            agent = choice.agent.path
        made = plan.environment(prepared, host, choice, f"{uv}/uv")
        order = plan.order(
            prepared,
            host,
            choice.base,
            made,
            runtime=f"{host.cache}/{runtime}",
            machine=machine,
            name=f"{machine}~{node}",
            address=address,
            lease_s=lease_s,
            lease_file=lease_file,
            timeout_s=max(self._deadline - time.monotonic() - _CEDE_S, 0.1),
        )
        return await self._agent(host, agent, order)

    # --- before there is an agent -----------------------------------------------------------------------------------

    async def _survey(self, runtime: str) -> tuple[HostFacts, plan.Choice, wheels.Tool | None]:
        """Probe the host and choose its Pythons, and the uv that it needs; None: it needs none."""
        prepared = self._prepared
        likely = None
        if prepared.uv is not None and prepared.image.needs_uv:
            likely = await prepared.wheel_cache.tool(prepared.uv, wheels.here())
        host = await self._probe([runtime, *([likely.place] if likely is not None else [])])
        choice = plan.choose(prepared, host)
        if not choice.environment:
            return host, choice, None
        assert prepared.uv is not None, "without it there is no such choice"
        tool = await prepared.wheel_cache.tool(prepared.uv, wheels.tool_target(host.machine, host.libc))
        if tool != likely:  # the host lacks a fitting Python, or is of another kind than this computer
            host = await self._probe([runtime, tool.place])
        return host, choice, tool

    async def _probe(self, paths: Sequence[str]) -> HostFacts:
        asked = self._prepared.image.python
        argv = probe.arguments(self._prepared.client.minor, asked if asked.startswith("/") else "", paths)
        ended = await self._shell.run(argv, stdin=probe.SCRIPT)
        try:
            host = probe.parse(ended.stdout)
        except probe.ProbeFailed as error:
            raise self._failed("the host does not run a shell script as it should", ended, "sh -s") from error
        if host.system != "Linux":
            raise self._failed(f"the host's system is {host.system or 'unknown'}", hint="use hosts that run Linux")
        if host.refused:
            raise self._failed(f"the cache {host.cache} cannot be written", log=host.refused.splitlines())
        if host.exposed:
            raise self._exposed(host)
        return host

    def _exposed(self, host: HostFacts) -> BootstrapError:
        owner, mode, path = host.exposed.split(" ", 2)
        whose = f"uid {owner}, mode {mode}" if owner != "?" else "nobody can say whose it is"
        return self._failed(
            f"the cache {host.cache} cannot be trusted, because somebody else may have written what would be run from "
            f"it: {path} ({whose}; this user is uid {host.uid})",
            hint=f"remove {path} there, or set OUTRIDER_CACHE in the host's environment to a folder in which only this "
            "user can write",
        )

    def _room(self, host: HostFacts, size: int) -> None:
        if host.free_bytes is not None and host.free_bytes < 4 * size:  # unpacked it takes three times as much
            raise self._failed(
                f"only {host.free_bytes / 1e6:.0f} MB are free in {host.cache}", log=["No space left on device"]
            )

    async def _upload(self, host: HostFacts, path: str, data: bytes) -> None:
        folder, _, name = path.partition("/")
        ended = await self._shell.run(["sh", "-c", _UNPACK, "upload", f"{host.cache}/{folder}", name], stdin=data)
        if ended.status != 0:
            raise self._failed(f"{path} could not be unpacked in {host.cache}", ended, f"tar -xzf - -C {folder}")

    async def _fetch_python(self, host: HostFacts, version: str, uv: str) -> str:
        """Have uv install a Python on a host that has none; returns its path."""
        binary, place = f"{host.cache}/{uv}/uv", f"{host.cache}/pythons"
        env = (*_PRIVATELY, f"UV_CACHE_DIR={host.cache}/uv-cache", f"UV_PYTHON_INSTALL_DIR={place}", "UV_NO_PROGRESS=1")
        for argv in (
            [*env, binary, "python", "install", "--no-bin", version],
            [*env, binary, "python", "find", "--managed-python", "--no-project", version],
        ):
            ended = await self._shell.run(argv)
            if ended.status != 0:
                command = f"uv {shlex.join(argv[len(env) + 1 :])}"
                hint = (
                    f"install Python {'.'.join(version.split('.')[:2])} on that host: it has none, and does not get it"
                )
                raise self._failed(f"{command} ended with {ended.how}", ended, command, hint=hint)
        return ended.stdout.decode().strip().rpartition("\n")[2]  # the last line: a login may print others before it

    # --- the agent --------------------------------------------------------------------------------------------------

    async def _agent(self, host: HostFacts, python: str, order: dict[str, Any]) -> Bootstrapped:
        session = _AgentSession(self._prepared, host, self._on_phase, order)
        argv = [python, "-I", order["runtime"], "agent"]
        try:
            ended = await self._shell.run(argv, stdin=session.stdin(), output=session.on_output)
        finally:
            session.close()
        if session.garbled:
            raise self._failed(session.garbled, log=self._lines)
        if isinstance(session.defect, OSError):
            raise self._failed(f"a file could not be sent: {session.defect}", hint="try again when nobody writes to it")
        if session.defect is not None:
            raise session.defect
        if session.failure is not None:
            raise self._agent_error(session.failure)
        if session.result is None:
            if ended.status is None and ended.signal is None:
                raise ConnectionResetError("the connection was lost while the image was being brought there")
            raise self._failed(f"the agent ended with {ended.how}", ended, shlex.join(argv))
        return Bootstrapped(session.result["socket"], session.result["python"], session.result["runtime"])

    def _on_phase(self, phase: Phase) -> None:
        if phase.state == "started":
            self._phase, self._lines = phase.name, []
        elif phase.state == "line":
            self._lines = [*self._lines[-LOG_LINES:], phase.text]
        self._report(phase)

    @contextmanager
    def _during(self, name: str, text: str = "") -> Iterator[None]:
        began = time.monotonic()
        self._on_phase(Phase(name, "started", text))
        yield
        self._on_phase(Phase(name, "finished", "", time.monotonic() - began))

    # --- errors -----------------------------------------------------------------------------------------------------

    def _failed(
        self, reason: str, ended: Exit | None = None, command: str | None = None, *,
        log: Sequence[str] = (), hint: str = "",
    ) -> BootstrapError:  # fmt: skip
        if ended is not None:
            if ended.status is None and ended.signal is None:
                raise ConnectionResetError("the connection was lost while the image was being brought there")
            output = ended.stderr if ended.stderr.strip() else ended.stdout
            log = output.decode(errors="replace").splitlines()
        return self._error(reason, command, None if ended is None else ended.status, log, hint)

    def _agent_error(self, failure: dict[str, Any]) -> BootstrapError:
        self._phase = failure["phase"]
        return self._error(
            self._late() if failure["timed_out"] else failure["reason"],
            failure["command"] or None,
            failure["exit_status"],
            failure["log"] or self._lines,
            failure["hint"],
            timed_out=failure["timed_out"],
        )

    def hung(self) -> BootstrapError:
        return self._error(self._late(), None, None, self._lines, "", timed_out=True)

    def _late(self) -> str:
        return f"it took longer than {self._prepared.image.bootstrap_timeout:g} s"

    def _error(
        self, reason: str, command: str | None, status: int | None, log: Sequence[str], hint: str, *,
        timed_out: bool = False,
    ) -> BootstrapError:  # fmt: skip
        return explained(
            self._phase,
            self._scrub(reason),
            command=None if command is None else self._scrub(command),
            exit_status=status,
            log=[self._scrub(line) for line in log],
            hint=hint,
            timed_out=timed_out,
        )


class _AgentSession:
    """The conversation with one agent: its requests decide what it is sent."""

    def __init__(
        self, prepared: Prepared, host: HostFacts, phase: Callable[[Phase], None], order: dict[str, Any]
    ) -> None:
        self._prepared, self._host, self._phase = prepared, host, phase
        self._order = order
        self._lines = frames.Lines()
        self._wanted: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._sources: dict[str, wheels.Wheel | Copy] = {
            file.copy.sha256: file.copy for file in prepared.includes.files.values()
        }
        self.result: dict[str, Any] | None = None
        self.failure: dict[str, Any] | None = None
        self.defect: BootstrapError | OSError | None = None  # a failure on the client's side
        self.garbled = ""  # the agent's violation of the protocol; everything after it is ignored

    def close(self) -> None:
        self._wanted.put_nowait(None)

    def on_output(self, data: bytes) -> None:
        if self.garbled:
            return
        try:
            for frame in self._lines.feed(data):
                self._take(frame)
        except (KeyError, TypeError, ValueError) as error:
            self._garble(str(error))

    def _take(self, frame: dict[str, Any]) -> None:
        match frame["is"]:
            case "phase":
                self._phase(Phase(frame["name"], frame["state"], frame["text"], frame["seconds"]))
            case "need":
                if self._wanted.qsize() >= NEEDS:
                    raise ValueError("it asks for more than it waits for")
                if not all(isinstance(digest, str) for digest in frame.get("files", ())):
                    raise ValueError("it asks for files by what is no text")
                self._wanted.put_nowait(frame)
            case "result":
                self.result = {name: str(frame[name]) for name in ("socket", "python", "runtime")}
                self.close()
            case "failed":
                self.failure = {name: frame[name] for name in FAILURE}
                self.close()
            case _:
                pass

    def _garble(self, what: str) -> None:
        self.garbled = f"the agent broke its protocol: {what}"
        self.close()

    async def stdin(self) -> AsyncIterator[bytes]:
        """The bytes for the agent's stdin, which stays open while the agent works, as it ends when stdin does."""
        yield frames.encode("plan", **self._order)
        try:
            while (wanted := await self._wanted.get()) is not None:
                if wanted.get("wheels"):
                    if (
                        self._prepared.uv is None
                        or self._prepared.requirements is None
                        or not self._order["environment"]
                    ):
                        self._garble("it asks for packages, and the image has none")
                        return
                    yield await self._wheels(self._prepared.uv, self._prepared.requirements)
                for digest in wanted.get("files", ()):
                    if (source := self._sources.get(digest)) is None:
                        self._garble(f"it asks for a file that the image does not have: {digest!r:.80}")
                        return
                    async for part in _file(source):
                        yield part
        except (BootstrapError, OSError) as error:
            self.defect = error

    async def _wheels(self, uv: Uv, requirements: Requirements) -> bytes:
        prepared, made = self._prepared, self._order["environment"]
        python = next((p.version for p in self._host.pythons if p.path == made["python"]), prepared.client.minor)
        target = wheels.target_of(self._host.machine, self._host.libc)
        self._phase(Phase("packages", "line", f"resolving for {target}, Python {python}, on this computer"))
        chosen = await prepared.wheel_cache.select(uv, requirements, target, python)
        self._sources |= {wheel.sha256: wheel for wheel in chosen.wheels}
        listed = [(wheel.name, wheel.sha256, wheel.size_bytes) for wheel in chosen.wheels]
        return frames.encode("wheels", requirements=chosen.requirements, wheels=listed)


async def _file(source: wheels.Wheel | Copy) -> AsyncIterator[bytes]:
    """One file as a frame, in pieces. A small file is compressed where that helps."""
    size = source.size_bytes
    if size <= _PACKED_BYTES:
        data = await in_thread(source.read, 0, size, abandon=True)
        smaller = zlib.compress(data, 6)
        is_packed = len(smaller) < len(data)
        yield frames.encode("file", smaller if is_packed else data, sha256=source.sha256, packed=is_packed)
        return
    yield json.dumps({"is": "file", "bytes": size, "sha256": source.sha256}).encode() + b"\n"
    sent = 0
    while sent < size:
        data = await in_thread(source.read, sent, _PIECE_BYTES, abandon=True)
        if not data:
            raise OSError(f"{source} became shorter while it was sent")
        sent += len(data)
        yield data
