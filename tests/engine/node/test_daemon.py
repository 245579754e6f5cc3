"""The runtime on a Python that has nothing installed: the executor behind its unix socket, and the bridge to it."""

from __future__ import annotations

import os
import platform
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import cloudpickle
import msgpack
import pytest

from outrider.engine.image import outrider_archive
from outrider.engine.node import bridge
from outrider.engine.node.bridge import BEGINS
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.codec import encode
from outrider.engine.wire.session import Session

BARE = [sys.executable, "-I", "-S"]  # no environment, no site-packages


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime")
    subprocess.run(["tar", "-xzC", folder], input=outrider_archive.build().data, check=True)
    return folder


@pytest.fixture
def daemon(runtime: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    options = ["--directory", tmp_path / "node", "--lease", "120", "--foreground"]
    running = subprocess.Popen([*BARE, runtime, "daemon", *options])
    while not (tmp_path / "node" / "executor.sock").exists():
        assert running.poll() is None
        time.sleep(0.002)
    yield running
    running.terminate()
    running.wait()


class Caller:
    """The smallest client there is: one socket, one thing at a time."""

    def __init__(self, path: Path) -> None:
        self.session = Session()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.heard: list[m.Message] = []

    def greet(self) -> m.Welcome:
        python = ".".join(platform.python_version_tuple()[:2])
        setup = {"slots": 1, "kind": "process", "env": {}}
        hello = m.Hello(m.PROTOCOL_VERSION, "s", 0, python, cloudpickle.__version__, 20.0, setup)
        self.socket.sendall(encode(hello))
        welcome = self.expect(m.Welcome)
        self.session.resume(welcome.received)
        return welcome

    def send(self, *messages: m.Message) -> None:
        for message in messages:
            self.session.send(message)
        self.socket.sendall(self.session.flush())

    def expect(self, kind: type[Any]) -> Any:
        while not any(isinstance(x, kind) for x in self.heard):
            data = self.socket.recv(65536)
            assert data, "the daemon hung up"
            self.heard += self.session.feed(data)
        return next(x for x in self.heard if isinstance(x, kind))


def test_a_runtime_is_the_same_for_the_same_sources(runtime: Path) -> None:
    first = outrider_archive.build()
    outrider_archive.build.cache_clear()
    second = outrider_archive.build()
    assert first == second
    assert len(first.data) < 1_300_000  # bytes sent to each node; each cloud adds about 12 kB


def test_it_is_the_whole_package_with_what_a_host_may_lack(runtime: Path) -> None:
    names = {path.relative_to(runtime).as_posix() for path in runtime.rglob("*") if path.is_file()}
    assert {
        "__main__.py",
        "outrider/__init__.py",
        "outrider/engine/plugins/torch.py",
        "cloudpickle/cloudpickle.py",
    } <= names
    assert "pure/msgpack/fallback.py" in names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_tasks_can_ask_it_for_its_version_and_plugins(runtime: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import outrider\n"
        "from outrider.engine.plugins.registry import plugins\n"
        "print(outrider.__version__, 'torch' in dir(plugins), outrider.__file__.startswith(sys.argv[1]))"
    )
    said = subprocess.run([*BARE, "-c", code, runtime], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [version("outrider"), "True", "True"]


def test_a_compiled_msgpack_of_the_host_is_preferred(runtime: Path) -> None:
    main = (runtime / "__main__.py").read_text()
    code = f"__file__ = {str(runtime / 'x')!r}; __name__ = 'boot'\n{main}\nimport msgpack; print(msgpack.__file__)"
    with_site = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    without = subprocess.run([*BARE, "-c", code], capture_output=True, text=True, check=True)
    assert with_site.stdout.strip() == msgpack.__file__
    assert without.stdout.strip() == str(runtime / "pure" / "msgpack" / "__init__.py")


def test_a_host_with_nothing_but_python_runs_tasks(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path = tmp_path / "node" / "executor.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    caller = Caller(path)
    assert caller.greet().facts["pid"] == daemon.pid
    code = cloudpickle.dumps(lambda load: sum(load()[0]))
    caller.send(m.Define(b"f", code), m.Run(1, b"f", values.inline(values.dump(((1, 2, 3), {}))), 1, 1, None, 0, None))
    assert values.load(caller.expect(m.Done).value.data) == 6
    caller.send(m.Bye())
    assert daemon.wait(60) == 0
    assert not path.exists()
    caller.socket.close()


def test_it_outlives_who_started_it_and_is_started_once(runtime: Path, tmp_path: Path) -> None:
    start = [*BARE, str(runtime), "daemon", "--directory", str(tmp_path / "node"), "--lease", "120", "--remove"]
    for _ in range(2):
        said = subprocess.run(start, capture_output=True, text=True, check=True, timeout=60)
        assert said.stdout.strip() == str(tmp_path / "node" / "executor.sock")
    caller = Caller(tmp_path / "node" / "executor.sock")
    pid = caller.greet().facts["pid"]
    assert os.getsid(pid) not in {os.getsid(0), pid}
    daemon_end = os.pidfd_open(pid)
    caller.send(m.Bye())
    assert caller.socket.recv(65536) == b""
    caller.socket.close()
    select.select([daemon_end], [], [], 60)
    os.close(daemon_end)
    assert not (tmp_path / "node").exists()


def test_a_directory_that_is_not_its_own_any_more_is_left_alone(runtime: Path, tmp_path: Path) -> None:
    """Somebody has removed it, and made another for the next executor of that name."""
    node, moved = tmp_path / "node", tmp_path / "moved"
    options = ["--directory", node, "--lease", "120", "--foreground", "--remove"]
    with subprocess.Popen([*BARE, runtime, "daemon", *options]) as running:
        while not (node / "executor.sock").exists():
            assert running.poll() is None
            time.sleep(0.002)
        node.rename(moved)
        node.mkdir()
        for name in ("executor.sock", "lock"):
            (node / name).touch()
        caller = Caller(moved / "executor.sock")
        caller.greet()
        caller.send(m.Bye())
        assert running.wait(60) == 0
        caller.socket.close()
    work = {"work"}  # where a worker that is just being started is to begin
    assert {path.name for path in node.iterdir()} - work == {"executor.sock", "lock"}


def test_scripts_of_tasks_can_log(runtime: Path) -> None:
    """Guides tell them to call `python -m outrider log`."""
    path = f"import sys; sys.path[:0] = [{str(runtime)!r}, {str(runtime / 'pure')!r}]; sys.argv = ['', 'log', 'a=1']"
    run = "import runpy; runpy.run_module('outrider', run_name='__main__')"
    ended = subprocess.run([*BARE, "-c", f"{path}; {run}"], capture_output=True, text=True, check=False)
    assert "OUTRIDER_LOG is not set" in ended.stderr  # there is no task here


def test_an_old_python_is_told_apart() -> None:
    source = (Path(bridge.__file__).parent / "boot.py").read_text()
    for version_there, verb, least in (("(3, 9, 1)", "daemon", "3.11"), ("(3, 6, 9)", "install", "3.8")):
        old = source.replace("sys.version_info", version_there)
        code = f"__file__ = '/x'\n{old}"
        said = subprocess.run([sys.executable, "-c", code, verb], capture_output=True, text=True, check=False)
        assert said.returncode == 1
        there = ".".join(version_there[1:-1].split(", ")[:2])
        assert said.stderr.strip() == f"outrider: this host's Python is {there}; at least {least} is needed"


def test_a_bridge_joins_a_client_and_the_executor(
    daemon: subprocess.Popen[bytes], runtime: Path, tmp_path: Path
) -> None:
    start = [*BARE, runtime, "bridge", tmp_path / "node" / "executor.sock"]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as bridge:
        _converse(bridge, daemon)
    assert bridge.returncode == 0


def _converse(bridge: subprocess.Popen[bytes], daemon: subprocess.Popen[bytes]) -> None:
    assert bridge.stdin
    assert bridge.stdout
    python = ".".join(platform.python_version_tuple()[:2])
    hello = m.Hello(
        m.PROTOCOL_VERSION, "s", 0, python, cloudpickle.__version__, 20.0, {"slots": 1, "kind": "process", "env": {}}
    )
    bridge.stdin.write(encode(hello))
    session = Session()
    heard: list[m.Message] = []
    assert bridge.stdout.read(len(BEGINS)) == BEGINS
    while not heard:
        heard += session.feed(bridge.stdout.read(65536))
    assert isinstance(heard[0], m.Welcome)
    assert heard[0].facts["pid"] == daemon.pid
    session.resume(heard[0].received)
    sent = threading.Thread(target=_all, args=(bridge.stdin, b"".join(encode(m.Ping(n)) for n in range(80_000))))
    sent.start()  # more than the pipes hold, both ways at once
    while not (isinstance(heard[-1], m.Pong) and heard[-1].sent_ms == 79_999):
        heard += session.feed(bridge.stdout.read(65536))
    sent.join()
    assert [x.sent_ms for x in heard if isinstance(x, m.Pong)] == list(range(80_000))


def _all(pipe: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]


def test_a_bridge_to_no_executor_says_so(runtime: Path, tmp_path: Path) -> None:
    said = subprocess.run(
        [*BARE, runtime, "bridge", tmp_path / "executor.sock"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 1
    assert "cannot be connected to: No such file or directory" in said.stderr
