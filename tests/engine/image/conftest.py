"""A host that is a folder: commands run here, with a home of their own, as sshd would run them for a login."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import select
import shlex
import signal
import socket
import subprocess
import threading
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from uv import find_uv_bin

from outrider import Image
from outrider.engine.image.bootstrap import Bootstrapped, Phase, bootstrap
from outrider.engine.image.commands import CommandResult
from outrider.engine.image.install_plan import Prepared, prepare
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.codec import encode
from outrider.engine.wire.session import Session


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class LocalShell:
    """Implements `CommandRunner` over processes of this computer. ``environment`` is all that they get."""

    def __init__(self, home: Path, **environment: str) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment}
        self.commands: list[Sequence[str]] = []
        self.pids: list[int] = []
        self.banner = b""  # what a login shell's own files print
        self.loses: Callable[[Sequence[str]], bool] = lambda argv: False  # with the connection, what it says

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "outrider"

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | AsyncIterable[bytes] = b"",
        output: Callable[[bytes], None] | None = None,
    ) -> CommandResult:
        self.commands.append(argv)
        running = await asyncio.create_subprocess_shell(
            shlex.join(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.home,
            start_new_session=True,
        )
        self.pids.append(running.pid)
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        feeding = asyncio.ensure_future(self._feed(running.stdin, stdin))
        errors = asyncio.ensure_future(running.stderr.read())
        collected = bytearray()
        take = collected.extend if output is None or self.loses(argv) else output
        try:
            if self.banner:
                take(self.banner)
            while data := await running.stdout.read(65536):
                take(data)
            status = await running.wait()
            if self.loses(argv):
                raise ConnectionResetError("lost")
            name = signal.Signals(-status).name.removeprefix("SIG") if status < 0 else None
            return CommandResult(None if status < 0 else status, name, bytes(collected), await errors)
        finally:
            feeding.cancel()
            with suppress(asyncio.CancelledError, BrokenPipeError, ConnectionResetError):
                await feeding
            running.stdin.close()
            errors.cancel()
            await asyncio.shield(running.wait())  # a cancelled command ends by itself, as its stdin has ended

    async def _feed(self, pipe: asyncio.StreamWriter, data: bytes | AsyncIterable[bytes]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            async for part in data if not isinstance(data, bytes) else _once(data):
                pipe.write(part)
                await pipe.drain()
            pipe.close()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Node:
    """The executor that a bootstrap started, as its client sees it."""

    def __init__(self, made: Bootstrapped) -> None:
        self.made = made
        self.session = Session()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(made.executor_socket)
        self.attempts = 0
        self._on_phase: list[m.Message] = []

    def greet(self, **env: str) -> dict[str, Any]:
        python = ".".join(platform.python_version_tuple()[:2])
        setup = {"slots": 1, "kind": "process", "env": env}
        hello = m.Hello(m.PROTOCOL_VERSION, "s", 0, python, cloudpickle.__version__, 20.0, setup)
        self.socket.sendall(encode(hello))
        welcome = self._next(m.Welcome)
        self.session.resume(welcome.received)
        self.end = os.pidfd_open(welcome.facts["pid"])
        return welcome.facts  # type: ignore[no-any-return]

    def run(self, function: Callable[[], Any]) -> Any:
        """What it returns there; its own error, as a text, where it raises."""
        self.attempts += 1
        name = b"f%d" % self.attempts
        code = cloudpickle.dumps(lambda load: function())
        run = m.Run(self.attempts, name, values.inline(values.dump(((), {}))), 1, 1, None, 0, None)
        self.session.send(m.Define(name, code))
        self.session.send(run)
        self.socket.sendall(self.session.flush())
        answer = self._next(m.Done, m.Failed)
        assert isinstance(answer, m.Done), answer.traceback
        return values.load(answer.value.data)

    def stop(self) -> None:
        """Say goodbye, and wait until it is gone."""
        if self.attempts >= 0:
            self.attempts = -1
            self.session.send(m.Bye())
            self.socket.sendall(self.session.flush())
            select.select([self.end], [], [], 60)
            os.close(self.end)
            self.socket.close()

    def _next(self, *kinds: type[Any]) -> Any:
        while True:
            for message in self._on_phase:
                if isinstance(message, kinds):
                    self._on_phase.remove(message)
                    return message
            data = self.socket.recv(65536)
            assert data, "the executor hung up"
            self._on_phase += self.session.feed(data)


class Bringer:
    """Brings images onto a host, and keeps what it was told."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.nodes: list[Node] = []
        self._names = 0

    async def __call__(
        self, image: Image | Prepared, shell: LocalShell, *, name: str | None = None, lease_file: str = ""
    ) -> Node:
        self._names += 1
        self.phases.clear()
        made = await bootstrap(
            shell,
            await prepare(image) if isinstance(image, Image) else image,
            pool="pool",
            machine=name or str(self._names),
            node=0,
            address=None,
            lease_s=20.0,
            lease_file=lease_file,
            progress=self.phases.append,
        )
        node = Node(made)
        self.nodes.append(node)
        return node

    @property
    def done(self) -> list[str]:
        """The phases that were gone through."""
        return [phase.name for phase in self.phases if phase.state == "finished"]

    @property
    def lines(self) -> list[str]:
        return [phase.text for phase in self.phases if phase.state == "line"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This computer's own cache is not the user's; the packed uv is shared by a module's tests."""
    cache = tmp_path_factory.getbasetemp() / "client-cache"
    monkeypatch.setenv("OUTRIDER_CACHE", str(cache))
    return cache


@pytest.fixture(autouse=True)
def small_uv(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts get a script that runs this computer's uv.

    To pack, send and unpack its 38 MB was half of what these tests took. One has `uv_itself`, as the lab has.
    """
    script = tmp_path_factory.getbasetemp() / "uv"
    if not script.exists():
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(find_uv_bin())} "$@"\n')
        script.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(script))


@pytest.fixture
def uv_itself(small_uv: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uv.find_uv_bin", find_uv_bin)


@pytest.fixture
def shell(tmp_path: Path) -> LocalShell:
    return LocalShell(tmp_path / "host")


@pytest.fixture
def bring() -> Iterator[Bringer]:
    bringer = Bringer()
    yield bringer
    for node in bringer.nodes:
        if node.attempts >= 0:
            if not hasattr(node, "end"):
                node.greet()
            node.stop()


Wheelhouse = Callable[..., Path]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


@pytest.fixture
def make_wheel(wheels: Path) -> Wheelhouse:
    return partial(_wheel, wheels)


def _wheel(
    folder: Path, name: str, version: str = "1.0", *, requires: Sequence[str] = (), tag: str = "py3-none-any"
) -> Path:
    """The smallest package there is: a module of that name with its VERSION."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(
        f"{path},sha256={urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}\n"
        for path, text in files.items()
    )
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(each, text)
    return path


class Index(ThreadingHTTPServer):
    """A package index over a folder of wheels; with ``password``, for user "me" alone. ``hashes``: it names them."""

    def __init__(self, wheels: Path, password: str = "", *, hashes: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _IndexHandler)
        self.wheels, self.password, self.hashes = wheels, password, hashes
        self.asked: list[str] = []
        self.seen: Callable[[], None] = lambda: None  # called while whoever asks waits

    @property
    def url(self) -> str:
        login = f"me:{self.password}@" if self.password else ""
        return f"http://{login}127.0.0.1:{self.server_port}/simple"


class _IndexHandler(SimpleHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        index = self.server
        index.seen()
        index.asked.append(self.path)
        if index.password:
            import base64

            expected = "Basic " + base64.b64encode(f"me:{index.password}".encode()).decode()
            if self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                return
        kind, _, rest = self.path.strip("/").partition("/")
        if kind == "files" and (index.wheels / rest).is_file():
            self._answer((index.wheels / rest).read_bytes(), "application/octet-stream")
            return
        found = [wheel for wheel in index.wheels.glob("*.whl") if wheel.name.split("-")[0].replace("_", "-") == rest]
        if kind != "simple" or not found:
            self.send_error(404)
            return
        fragment = lambda wheel: f"#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" if index.hashes else ""  # noqa: E731
        links = "".join(f'<a href="/files/{each.name}{fragment(each)}">{each.name}</a>' for each in found)
        self._answer(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")

    def _answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.send_error(405)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve(wheels: Path) -> Iterator[Callable[..., Index]]:
    """Serves the wheels; ``password=``: to who knows it; ``hashes=False``: without saying their hashes."""
    running: list[tuple[Index, threading.Thread]] = []

    def start(password: str = "", *, hashes: bool = True) -> Index:
        index = Index(wheels, password, hashes=hashes)
        thread = threading.Thread(target=index.serve_forever, args=(0.01,))
        thread.start()
        running.append((index, thread))
        return index

    yield start
    for index, thread in running:
        index.shutdown()
        thread.join()
        index.server_close()
