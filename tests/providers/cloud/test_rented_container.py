"""A rented container's first process: in its own process namespace, with a folder as its root and an sshd on paper."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from gzip import decompress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from outrider.providers.base import MachineId, MachineReachable
from outrider.providers.cloud import machine_start
from outrider.providers.cloud.inventory import InstanceInventory, InstanceView
from outrider.providers.cloud.machine_start import HostKey, first_process, new_machine
from outrider.providers.cloud.offers import InstanceType, Offer
from outrider.providers.cloud.vendor import Vendor

KEY = HostKey("-----BEGIN OPENSSH PRIVATE KEY-----\nsecret'\n-----END OPENSSH PRIVATE KEY-----\n", "ssh-ed25519 HOST")
CLIENT = "ssh-ed25519 " + "C" * 68
ASK = 'echo asked >>"$OUTRIDER_ROOT/asked"; test -e "$OUTRIDER_ROOT/agrees"'
SSHD = '#!/bin/sh\necho "$@" >>"$OUTRIDER_ROOT/sshd"\nwhile :; do date +%N >"$OUTRIDER_ROOT/ticks"; sleep 0.05; done\n'
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
WITHIN_S = 60.0


def _no_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return True
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0


alone = pytest.mark.skipif(_no_namespaces(), reason="no process namespaces for this user")


def command(**given: object) -> str:
    said = {"host_key": KEY, "client_key": CLIENT, "lease_s": 1.0, "end_itself": ASK, **given}
    return first_process(**said)  # type: ignore[arg-type]  # as a caller may write them


def unpacked(text: str) -> str:
    found = re.search(r"echo (\S+) \|", text)
    assert found is not None
    return decompress(b64decode(found[1])).decode()


def until(done: Callable[[], object], what: str) -> None:
    by = time.monotonic() + WITHIN_S
    while not done():
        assert time.monotonic() < by, what
        time.sleep(0.02)


class Container:
    def __init__(self, root: Path) -> None:
        self.root, self.tools, self.run = root, root / "bin", root / "run" / "outrider"
        self.process: subprocess.Popen[bytes] | None = None
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc" / "shadow").write_text("root:!:19000:0:99999:7:::\n")
        self.tools.mkdir()
        self.has("sshd", SSHD)
        self.has("ssh-keygen", "#!/bin/sh\n")

    def has(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def start(self, text: str, **env: str) -> None:
        given = {"PATH": f"{self.tools}:/usr/bin:/bin", "OUTRIDER_ROOT": str(self.root), **env}
        self.process = subprocess.Popen([*NAMESPACE, "sh", "-c", text], env=given, stderr=subprocess.DEVNULL)
        until(lambda: (self.root / "ticks").exists(), "the SSH server is not started")

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    @property
    def asked(self) -> int:
        return len((self.root / "asked").read_text().split()) if (self.root / "asked").exists() else 0


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    monkeypatch.setattr(machine_start, "CONTAINER_GRACE_S", 1)
    made = Container(tmp_path / "root")
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("shell", ["dash", "busybox", "bash"])
def test_it_is_short_and_every_shell_reads_it(shell: str) -> None:
    text = command(lease_s=3600.0, max_lifetime_s=1e6, port=22222)
    assert len(text) < 3500
    assert text == command(lease_s=3600.0, max_lifetime_s=1e6, port=22222)
    assert "# " not in unpacked(text)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    argv = [shell, *(["sh"] if shell == "busybox" else []), "-n", "/dev/stdin"]
    for each in (text, unpacked(text)):
        subprocess.run(argv, input=each.encode(), check=True)


@alone
def test_a_server_has_its_keys_and_tells_of_gpus_and_of_no_key_of_the_cloud(container: Container) -> None:
    container.start(
        command(lease_s=60.0, port=2200), CLOUD_API_KEY="secret", CUDA_VERSION="12.8", LD_LIBRARY_PATH="/a b"
    )
    host_key = container.root / "etc" / "ssh" / "ssh_host_ed25519_key"
    assert host_key.read_text() == KEY.private
    assert host_key.stat().st_mode & 0o777 == 0o600
    assert (container.run / "container.sh").stat().st_mode & 0o777 == 0o600
    assert (container.run / "authorized_keys").read_text() == f"{CLIENT}\n"
    settings = (container.run / "sshd_config").read_text()
    assert "Port 2200\n" in settings
    assert f"HostKey {host_key}\n" in settings
    assert '"CUDA_VERSION=12.8"' in settings
    assert '"LD_LIBRARY_PATH=/a b"' in settings
    assert "secret" not in settings
    assert (container.root / "etc" / "shadow").read_text().startswith("root:*:")
    assert "sshd:x:" in (container.root / "etc" / "passwd").read_text()
    until(lambda: (container.run / "lease").exists(), "there is no lease")
    assert container.asked == 0


@alone
def test_when_the_lease_is_over_all_is_killed_and_the_cloud_is_asked_until_it_agrees(container: Container) -> None:
    container.has("shutdown", '#!/bin/sh\ntouch "$OUTRIDER_ROOT/shut-down"\n')
    container.start(command())
    until(lambda: container.asked >= 2, "the cloud is not asked again")
    assert not (container.root / "shut-down").exists()
    ticks = (container.root / "ticks").read_text()
    assert container.process is not None
    assert container.process.poll() is None  # it holds out until the cloud deletes the container
    (container.root / "agrees").touch()
    before = container.asked
    until(lambda: container.asked > before, "the cloud is not asked")
    assert (container.root / "ticks").read_text() == ticks
    assert (container.root / "sshd").read_text().count("\n") == 1


# The lease's seconds are the test's: each ends when the test says so.
SECONDS = """#!/bin/sh
[ "$1" = 1 ] || exec /bin/sleep "$1"
until mv "$OUTRIDER_ROOT/second" "$OUTRIDER_ROOT/over" 2>/dev/null; do /bin/sleep 0.02; done
"""


@alone
def test_who_renews_keeps_it_and_its_lifetime_ends_it_all_the_same(container: Container) -> None:
    container.has("sleep", SECONDS)
    container.start(command(lease_s=2.0, max_lifetime_s=6.0))
    until(lambda: (container.run / "lease").exists(), "there is no lease")
    for _ in range(5):
        (container.run / "lease").touch()
        (container.root / "second").touch()
        until(lambda: not (container.root / "second").exists(), "it does not go on")
    assert container.asked == 0
    (container.run / "lease").touch()
    (container.root / "second").touch()
    until(lambda: container.asked, "its lifetime does not end it")


@pytest.mark.parametrize("manager", ["apt-get", "apk", "dnf"])
def test_a_server_is_installed_by_the_program_of_the_image(manager: str, tmp_path: Path) -> None:
    (tmp_path / "container.sh").write_text(unpacked(command()))
    (tmp_path / manager).write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/installed\n')
    (tmp_path / manager).chmod(0o755)
    (tmp_path / "sh").symlink_to(str(shutil.which("sh")))
    script = (tmp_path / "container.sh").read_text().replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
    (tmp_path / "container.sh").write_text(script)
    subprocess.run(["sh", tmp_path / "container.sh", "install"], env={"PATH": str(tmp_path)}, check=True)
    assert re.search(r"openssh(-server)? curl", (tmp_path / "installed").read_text())


@pytest.mark.parametrize("with_curl", [True, False])
def test_a_request_is_made_by_curl_or_else_by_python(with_curl: bool, tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            seen.append((self.command, self.path, self.headers["Authorization"]))
            self.send_response(404 if self.path == "/gone" else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's
            pass

    (tmp_path / "container.sh").write_text(unpacked(command()))
    tools = {"python3": sys.executable, "curl": shutil.which("curl"), "sh": shutil.which("sh")}
    for name in ("sh", "curl" if with_curl else "python3"):
        if tools[name] is None:
            pytest.skip(f"there is no {name} here")
        (tmp_path / name).symlink_to(str(tools[name]))
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            for path in ("/here", "/gone"):
                argv = [
                    "sh",
                    tmp_path / "container.sh",
                    "call",
                    "DELETE",
                    f"http://127.0.0.1:{server.server_port}{path}",
                ]
                ended = subprocess.run(
                    [*argv, "Authorization: Bearer x: y"],
                    env={"PATH": str(tmp_path)},
                    capture_output=True,
                    check=False,
                )
                assert (ended.returncode == 0) == (path == "/here"), ended.stderr
        finally:
            server.shutdown()
    assert seen == [("DELETE", "/here", "Bearer x: y"), ("DELETE", "/gone", "Bearer x: y")]


def test_a_machine_is_reached_at_the_port_that_the_cloud_has_mapped() -> None:
    inventory = InstanceInventory(Vendor(name="Sky", service="Sky"), public=True)
    offer = Offer(InstanceType("a", 1, 1.0, "x86_64"), "z", "spot", 1.0)
    machine = new_machine(MachineId("m"), offer, host_key="ssh-ed25519 HOST", image="")
    inventory.created(machine, "root", 0.0)
    view = InstanceView(machine.id, "running", public="198.51.100.7", port=40123)
    (event,) = inventory.full_answer([view], 0.0, 0.0).events
    assert isinstance(event, MachineReachable)
    assert event.machine.address is not None
    assert event.machine.address.port == 40123
