"""The installer: what it does for apt, that old Pythons understand it, and what it says."""

from __future__ import annotations

import ast
import io
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import BootstrapError, Image
from outrider.engine.image import install_plan, outrider_archive
from outrider.engine.image.install_plan import Prepared, Python, PythonChoice
from outrider.engine.image.installer import executor, protocol, system
from outrider.engine.image.installer import installation as installation_module
from outrider.engine.image.installer.installation import Failed, Installation

pytestmark = pytest.mark.anyio

SRC = Path(outrider_archive.__file__).parents[2]
INSTALLER = [
    *(SRC / "engine" / "image" / "installer").glob("*.py"),
    *(SRC / "engine" / "volumes").glob("*.py"),
    *(SRC / name for name in ("__init__.py", "engine/node/boot.py", "engine/node/process.py")),
]


@pytest.mark.parametrize("path", INSTALLER, ids=lambda path: path.name)
def test_python_3_8_understands_the_installer(path: Path) -> None:
    """Its grammar; and annotations, which are the only place for newer types, are never evaluated."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    annotated = any(isinstance(node, ast.FunctionDef) and node.returns for node in ast.walk(tree))
    assert not annotated or "from __future__ import annotations" in path.read_text() or path.name == "boot.py"
    newer = {"removeprefix", "removesuffix", "is_relative_to", "readlink", "pidfd_open", "cache", "with_stem"}
    assert not {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & newer


OLD = ("python3.8", "python3.9", "python3.10")


def old_pythons() -> list[str]:
    """Known by the names of their files: to ask them all took each process that collects the tests half a second."""
    found = [*Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3"), Path("/usr/bin/python3")]
    return [str(python) for python in found if python.exists() and python.resolve().name in OLD]


@pytest.mark.parametrize("python", old_pythons() or [pytest.param("", marks=pytest.mark.skip("there is none here"))])
async def test_an_old_python_carries_out_a_plan(
    python: str, shell: Any, bring: Any, make_wheel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs the installer; tasks run on the one that uv has made an environment of."""
    wheels = make_wheel("brought").parent
    old = Python("3.8.0", "cpython", python)

    def choose_python(prepared: Prepared, _: object) -> PythonChoice:
        return PythonChoice(old, sys.executable, environment=True, requirements=prepared.requirements)

    monkeypatch.setattr(install_plan, "choose_python", choose_python)
    image = Image(pip=["brought"], pip_indexes=[str(wheels)], includes=[wheels], run=["ls wheels"])
    node = await bring(image, shell)
    assert shell.commands[-1][0] == python
    assert bring.done == ["probe", "upload", "python", "packages", "files", "run", "executor"]
    node.greet()
    assert node.run(lambda: __import__("brought").VERSION) == "1.0"


@pytest.mark.parametrize("python", [sys.executable, *old_pythons()])
def test_an_installer_whose_client_has_gone_says_so_and_ends(python: str, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzC", tmp_path], input=outrider_archive.build().data, check=True)
    start = [python, "-I", tmp_path, "install"]
    installer = subprocess.run(start, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    output = [json.loads(line) for line in installer.stdout.splitlines() if line.strip()]
    assert [frame["is"] for frame in output] == ["hello", "failed"]
    assert output[1]["reason"] == "the client has gone"
    assert installer.stderr == b""


# --- frames ---------------------------------------------------------------------------------------------------------


def test_frames_survive_every_way_of_being_cut() -> None:
    frames_ = b'motd\n{"is":"motd"}\n{"is":"hello","version":1}\n{"is":"phase","text":"\\u00e9\\n"}\n'
    for at in range(len(frames_)):
        lines = protocol.Lines()
        found = lines.feed(frames_[:at]) + lines.feed(frames_[at:])
        assert [frame["is"] for frame in found] == ["hello", "phase"]


def test_a_line_without_an_end_is_refused_and_not_copied_until_then() -> None:
    """One that says 64 MiB without a newline kept the client busy for minutes: each piece copied all before it."""
    lines, piece = protocol.Lines(), bytes(1 << 10)
    rest = lines._rest
    for number in range(protocol.LINE_BYTES // len(piece)):
        assert lines.feed(piece) == []
        assert lines._rest is rest, "what came before is copied for each piece"
        assert len(rest) == (number + 1) * len(piece)
    with pytest.raises(ValueError, match="of at most 1048576"):
        lines.feed(b"x")
    with pytest.raises(ValueError, match="of at most 1048576"):
        protocol.Lines().feed(bytes(protocol.LINE_BYTES + 1) + b"\n")


def test_a_line_may_come_byte_by_byte() -> None:
    lines = protocol.Lines()
    output = b'{"is":"hello"}\n{"is":"phase","text":"' + b"x" * 5000 + b'"}\n'
    found = [frame for byte in output for frame in lines.feed(bytes([byte]))]
    assert [frame["is"] for frame in found] == ["hello", "phase"]


def test_lines_that_are_no_frames_are_skipped() -> None:
    lines = protocol.Lines()
    assert [frame["is"] for frame in lines.feed(b'{"is":"hello"}\nSegmentation fault\n[1]\n{"is":"result"}\n')] == [
        "hello", "result"
    ]  # fmt: skip


# --- apt ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand for a Debian's: what they are asked is in ``asked``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "dpkg-query", 'case "$*" in *" installed") echo "installed 1.0" ;; *) exit 1 ;; esac')
    program(folder, "apt-get", 'echo "fetched something"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $* $DEBIAN_FRONTEND" >>"$(dirname "$0")/asked"\n{script}\n')
    path.chmod(0o755)


def asked(folder: Path, name: str) -> list[str]:
    file = folder / "asked"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def installation() -> Iterator[Installation]:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    yield Installation(writes)
    os.close(reads)
    os.close(writes)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_only_what_is_missing_is_installed(host: Path, installation: Installation, as_root: None) -> None:
    assert system.missing_packages(["installed", "ffmpeg"]) == ["ffmpeg"]
    assert system.missing_packages(["installed=1.0", "installed=2.0"]) == ["installed=2.0"]
    system.install_packages(installation, ["ffmpeg"])
    assert [line.split()[-1] for line in asked(host, "apt-get")] == ["noninteractive"] * 2
    assert "update" in asked(host, "apt-get")[0]
    assert "install --yes --no-install-recommends -- ffmpeg" in asked(host, "apt-get")[1]
    assert "DPkg::Lock::Timeout" in asked(host, "apt-get")[1]


def test_a_broken_source_is_no_reason_to_give_up(host: Path, installation: Installation, as_root: None) -> None:
    program(host, "apt-get", 'case "$*" in *update*) echo "E: one repository is gone"; exit 100 ;; esac')
    system.install_packages(installation, ["ffmpeg"])
    assert len(asked(host, "apt-get")) == 2


def test_unknown_apt_package_is_reported_with_apts_output(
    host: Path, installation: Installation, as_root: None
) -> None:
    program(host, "apt-get", 'case "$*" in *install*) echo "E: Unable to locate package x"; exit 100 ;; esac')
    with pytest.raises(Failed) as caught:
        system.install_packages(installation, ["x"])
    assert caught.value.exit_status == 100
    assert caught.value.log == ["E: Unable to locate package x"]
    assert caught.value.command == "apt-get install --yes --no-install-recommends -- x"


def test_another_installer_is_waited_for(
    host: Path, installation: Installation, as_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(system.time, "sleep", waits.append)
    program(
        host,
        "apt-get",
        'if [ $(grep -c "^apt-get.*update" "$(dirname "$0")/asked") -lt 3 ]; then '
        'echo "E: Could not get lock /var/lib/apt/lists/lock"; exit 100; fi',
    )
    system.install_packages(installation, ["ffmpeg"])
    assert len(waits) == 2
    assert len(asked(host, "apt-get")) == 4


def test_an_interrupted_dpkg_is_put_right(host: Path, installation: Installation, as_root: None) -> None:
    program(host, "dpkg", f'touch "{host}/right"')
    output = 'echo "E: dpkg was interrupted, you must"; exit 100'
    program(host, "apt-get", f'case "$*" in *install*) [ -e "{host}/right" ] || {{ {output}; }} ;; esac')
    system.install_packages(installation, ["ffmpeg"])
    assert asked(host, "dpkg") == ["--configure -a noninteractive"]


def test_a_user_installs_by_sudo(host: Path, installation: Installation, as_user: None) -> None:
    program(host, "sudo", 'shift; exec "$@"')
    system.install_packages(installation, ["ffmpeg"])
    assert asked(host, "apt-get")[1].endswith("-- ffmpeg noninteractive")
    assert all(line.startswith("-n ") for line in asked(host, "sudo"))


def test_sudo_that_asks_for_a_password_is_refused_with_what_to_do(
    host: Path, installation: Installation, as_user: None
) -> None:
    program(host, "sudo", 'echo "sudo: a password is required" >&2; exit 1')
    with pytest.raises(Failed, match="sudo asks for a password") as caught:
        system.install_packages(installation, ["ffmpeg"])
    assert "sudo apt-get install ffmpeg" in caught.value.hint


def test_a_sudo_that_does_not_answer_is_an_error(
    host: Path, installation: Installation, as_user: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that asks a directory for its rules, which is gone."""
    program(host, "sudo", "exec sleep 1000")
    monkeypatch.setattr(installation_module, "_ANSWERED_S", 0.1)
    with pytest.raises(Failed, match=r"sudo -n true did not end within 0\.1 s"):
        system.install_packages(installation, ["ffmpeg"])


def test_a_host_that_is_no_debian(installation: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed, match="no apt") as caught:
        system.missing_packages(["ffmpeg"])
    assert "leave it out" in caught.value.hint


async def test_apts_failure_reaches_the_user(host: Path, shell: Any, bring: Any) -> None:
    shell.environment["PATH"] = os.environ["PATH"]
    program(host, "apt-get", 'echo "E: Unable to locate package x"; exit 100')
    program(host, "sudo", 'shift; exec "$@"')
    with pytest.raises(BootstrapError) as caught:
        await bring(Image(apt=["installed", "x"]), shell)
    assert (caught.value.phase, caught.value.exit_status) == ("apt", 100)
    assert "check the names in Image(apt=...)" in caught.value.hint
    program(host, "apt-get", "echo fine")
    await bring(Image(apt=["installed", "x"]), shell)
    assert bring.done == ["probe", "apt", "executor"]


def test_an_installer_that_nobody_listens_to_ends_all_the_same(tmp_path: Path) -> None:
    """Its connection is dead and its words have filled the pipe: it is stuck saying more when its time is up."""
    (tmp_path / "runtime").mkdir()
    subprocess.run(["tar", "-xzC", tmp_path / "runtime"], input=outrider_archive.build().data, check=True)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)  # as the probe leaves it
    plan_ = {
        "cache": str(cache), "runtime": str(tmp_path / "runtime"), "node": "p~0", "machine": "p",
        "secrets": [], "apt": [], "python": sys.executable, "environment": None, "files": [], "paths": ["."],
        "run": ["yes"], "env": {}, "volumes": [], "address": None, "lease_s": 9.0, "lease_file": "", "timeout_s": 1.0,
    }  # fmt: skip
    start = [sys.executable, "-I", str(tmp_path / "runtime"), "install"]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as installer:
        assert installer.stdin is not None
        assert installer.stdout is not None
        installer.stdin.write(protocol.encode("plan", **plan_))
        installer.stdin.flush()
        assert installer.wait(60) == 1
        output = [frame for frame in protocol.Lines().feed(installer.stdout.read()) if frame["is"] == "failed"]
    assert [frame["reason"] for frame in output] in ([], ["it takes too long"]), "it ended for something else"
    assert list(cache.glob("pools/*")) == []


def test_what_another_host_of_the_same_name_has_left_stays(tmp_path: Path) -> None:
    """A home folder may be on a network's disk, and its computers all called localhost."""
    old = time.time() - 2 * 86400
    for name, host in (("here", executor.this_host()), ("there", f"{socket.gethostname()} {'0' * 16}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "host").write_text(host)
        (tmp_path / name / "lock").touch()
        os.utime(tmp_path / name, (old, old))
    executor.sweep(tmp_path, executor.this_host())
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_half_a_file_is_not_kept_when_the_client_goes(tmp_path: Path) -> None:
    gone = threading.Event()
    stream = io.BytesIO(b'{"is":"file","bytes":9,"sha256":"name"}\nhalf')
    box = protocol.Inbox.__new__(protocol.Inbox)
    box._stream, box._closed, box._frames, box.folder = stream, gone.set, queue.Queue(), tmp_path
    box._read()
    assert gone.is_set()
    assert list(tmp_path.iterdir()) == []
