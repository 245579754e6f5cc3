"""Nothing of a lab is left: not after its end, whatever was done to its hosts, and not after its death."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from netlab import Lab, PackageIndex, leftovers, sweep
from netlab.state import GONE, STATE, claim, locked, remove_dead

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent

DIES = """
import sys, time
sys.path.insert(0, sys.argv[1])
from netlab import Lab
lab = Lab()
frozen, far, small = lab.create_many(3, disk_bytes=8 << 20)
frozen.freeze()
far.distance(delay_s=0.01)
small.limit_memory(64 << 20)
lab.create("two", networks=[lab.network, lab.add_network()])
print(lab.number, frozen.pid, far.pid, small.pid, flush=True)
time.sleep(1000)
"""


def seen(number: int) -> list[str]:
    """Whatever on this machine bears the lab's number, looked for without the lab's own code."""

    def printed(*argv: str) -> list[str]:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()

    links = [name for _, name in socket.if_nameindex() if f"{name}-".startswith(f"orl{number}-")]
    names = [line for line in printed("ip", "netns", "list") if f"orl{number}" in line]
    subnets = [line for line in printed("ip", "-o", "addr") if f"10.77.{number}." in line]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if f"/run/outrider-lab/{number}/" in line]
    groups = control_groups(f"outrider-lab-{number}")
    processes = [str(path) for path in Path("/proc").glob("[0-9]*/cgroup") if f"/outrider-lab-{number}/" in text(path)]
    folders = [str(path) for path in Path("/run/outrider-lab").glob(str(number))]
    return links + names + subnets + mounts + groups + processes + folders


def control_groups(name: str) -> list[str]:
    """`Path.rglob` fails where a group of another test's host goes while it looks."""
    return [f"{top}/{name}" for top, folders, _ in os.walk("/sys/fs/cgroup") if name in folders]


def text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_the_end_of_a_lab_leaves_nothing(tmp_path):
    with Lab() as lab:
        frozen, far, dead, apart, full, busy = lab.create_many(6, disk_bytes=8 << 20)
        index = PackageIndex(lab.address, tmp_path)
        sleepers = [host.spawn("sleep", "1000") for host in (frozen, full, busy)]
        frozen.freeze()
        far.distance(delay_s=0.01, loss=0.1)
        dead.power_off(silent=True)
        apart.blackhole()
        full.run("sh", "-c", "dd if=/dev/zero of=/root/all bs=1M; sleep 1000 >/dev/null 2>&1 &", check=False)
        busy.drop(incoming=True)
        busy.limit_bandwidth(up_mbit=10, down_mbit=10)
        busy.limit_memory(64 << 20)
        lab.create("jump", networks=[lab.network, lab.add_network()])
        there = seen(lab.number)
        assert len(there) > 20
        assert leftovers(lab.number)
        index.close()
        with locked():  # else the next lab of another test has its number at once
            lab.close()
            assert leftovers(lab.number) == []
            assert seen(lab.number) == []
    for sleeper in sleepers:
        assert not sleeper.alive


def test_a_host_that_is_destroyed_leaves_nothing_while_its_lab_lives():
    with Lab() as lab:
        before = seen(lab.number)
        host = lab.create(disk_bytes=8 << 20)
        assert len(seen(lab.number)) > len(before)
        host.destroy()
        groups = [line for line in seen(lab.number) if "cgroup" in line]  # the lab's own, made with its first host
        assert [line for line in seen(lab.number) if line not in groups] == before
        assert lab.hosts == []


def test_a_lab_that_was_killed_is_swept_by_the_next():
    with subprocess.Popen([sys.executable, "-c", DIES, str(HERE)], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        number, *pids = map(int, killed.stdout.readline().split())
        assert len(pids) == 3
        sweep()
        assert len(seen(number)) > 10  # its maker lives: it is nobody else's to remove
        with locked():  # against the labs that other tests make at the same time
            killed.kill()
            killed.wait()
            assert seen(number)
            remove_dead()
            assert seen(number) == []
    assert not any(text(Path(f"/proc/{pid}/cmdline")) for pid in pids)


def test_a_pid_that_was_given_to_another_is_not_killed():
    with Lab() as lab:
        bystander = subprocess.Popen(["sleep", "1000"])
        with Path(f"/run/outrider-lab/{lab.number}/processes").open("a") as file:
            file.write(f"{bystander.pid} 1\n")
    try:
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_number_is_free_before_the_folder_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another lab takes what is left of the folder for that of a dead one."""
    state = claim()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path, **_: Path(path, "owner").unlink())
        state.remove()
        assert not state.folder.exists()
    sweep()
    assert not list(STATE.glob(f"*{GONE}"))
