"""The executor as one file, on a Python that has nothing installed, behind its unix socket."""

from __future__ import annotations

import os
import platform
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from outrider.engine.executor import bundle
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.codec import encode
from outrider.engine.wire.session import Session

BARE = [sys.executable, "-I", "-S"]  # no environment, no site-packages


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = bundle.build()
    path = tmp_path_factory.mktemp("bundle") / built.name
    path.write_bytes(built.data)
    return path


@pytest.fixture
def daemon(pyz: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([*BARE, pyz, "--directory", tmp_path / "node", "--lease", "20", "--foreground"])
    while not (tmp_path / "node" / "door").exists():
        assert running.poll() is None
    yield running
    running.terminate()
    running.wait()


class Caller:
    """The smallest client there is: one socket, one thing at a time."""

    def __init__(self, door: Path) -> None:
        self.session = Session()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(door))
        self.heard: list[m.Message] = []

    def greet(self) -> m.Welcome:
        python = ".".join(platform.python_version_tuple()[:2])
        hello = m.Hello(1, "s", 0, python, cloudpickle.__version__, 20.0, {"slots": 1, "kind": "process", "env": {}})
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


def test_a_bundle_is_the_same_for_the_same_sources() -> None:
    first, second = bundle.build(), bundle.build()
    assert first == second
    assert first.name.startswith("outrider-executor-")
    assert len(first.data) < 120_000


def test_it_contains_nothing_compiled_and_no_client(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as archive:
        names = archive.namelist()
    assert all(name.endswith(".py") for name in names)
    assert {name.split("/")[0] for name in names} == {"__main__.py", "outrider", "msgpack", "cloudpickle"}
    assert {name.split("/")[2] for name in names if name.count("/") > 2} == {"wire", "executor"}


def test_a_host_with_nothing_but_python_runs_tasks(daemon: subprocess.Popen[bytes], tmp_path: Path) -> None:
    door = tmp_path / "node" / "door"
    assert stat.S_IMODE(door.stat().st_mode) == 0o600
    assert stat.S_IMODE(door.parent.stat().st_mode) == 0o700
    caller = Caller(door)
    assert caller.greet().facts["pid"] == daemon.pid
    code = cloudpickle.dumps(lambda load: sum(load()[0]))
    caller.send(m.Define(b"f", code), m.Run(1, b"f", values.inline(values.dump(((1, 2, 3), {}))), 1, 1, None, 0, None))
    assert values.load(caller.expect(m.Done).value.data) == 6
    caller.send(m.Bye())
    assert daemon.wait(10) == 0
    assert not door.exists()
    caller.socket.close()


def test_it_outlives_who_started_it_and_is_started_once(pyz: Path, tmp_path: Path) -> None:
    start = [*BARE, str(pyz), "--directory", str(tmp_path / "node"), "--lease", "20"]
    for _ in range(2):
        said = subprocess.run(start, capture_output=True, text=True, check=True, timeout=20)
        assert said.stdout.strip() == str(tmp_path / "node" / "door")
    caller = Caller(tmp_path / "node" / "door")
    pid = caller.greet().facts["pid"]
    assert os.getsid(pid) not in {os.getsid(0), pid}
    caller.send(m.Bye())
    assert caller.socket.recv(65536) == b""
    caller.socket.close()


def test_an_old_python_is_told_apart() -> None:
    source = (Path(bundle.__file__).parent / "boot.py").read_text()
    old = source.replace("sys.version_info", "(3, 9)")
    said = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr.strip() == "outrider: this host's python3 is 3.9; at least 3.11 is needed"
