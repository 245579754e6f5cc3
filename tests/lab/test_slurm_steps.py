"""A node of a real Slurm job is reached over srun's streams, and its step ends without leaving anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import pytest
from netlab import PLAIN_USER, Lab

from outrider.engine.transport import command_stream
from outrider.engine.transport.connection_settings import SharedLogins
from outrider.engine.transport.ssh import Connected, RemoteShell
from outrider.providers.base import Address, Login, Machine, MachineId
from outrider.providers.slurm.step import programs

if TYPE_CHECKING:
    from cluster import Cluster

pytestmark = pytest.mark.anyio
FOLDER = f"/home/{PLAIN_USER}/job"
PYTHON = ("python3", "-I", "-S")


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


class Job:
    """One job, with a step server on each of its nodes."""

    def __init__(self, site: Cluster, lab: Lab, *options: str, lease_s: float = 300, setup: str = "") -> None:
        self.site, self.lab = site, lab
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        keys = self.key.export_public_key().decode()
        site.run("mkdir", "-m700", FOLDER)
        for name, text in {**programs.texts(), "authorized_keys": keys}.items():
            site.run("tee", f"{FOLDER}/{name}", stdin=text)
        server = " ".join([*PYTHON, f"{FOLDER}/{programs.SERVER}", FOLDER, f"--lease={lease_s}", "--grace=2"])
        given = ("--no-kill", "--no-requeue", "--output=job.out", *options)
        self.id = site.submit(*given, script=f"{setup}\nexec srun -K0 {server}")

    def wait_nodes(self, count: int) -> None:
        until(lambda: len(self.said()) == count)

    def said(self) -> dict[str, dict[str, str]]:
        text = self.site.run("sh", "-c", f"cat {FOLDER}/nodes/* 2>/dev/null", check=False).stdout
        return {each["node"]: each for each in map(json.loads, text.splitlines())}

    def machine(self, node: str, *, framed: bool, jump: bool = True) -> Machine:
        step = ("srun", "-u", "--quiet", f"--jobid={self.id}", "--overlap", "-N1", "-n1", f"--nodelist={node}")
        relay = (*PYTHON, f"{FOLDER}/{programs.RELAY}")
        way = (*relay, "--run", *step, *relay, "--framed", FOLDER) if framed else (*step, *relay, FOLDER)
        known = self.lab.key.with_name("known_hosts")
        known.write_text(self.site.login.known_hosts)
        login = Login((str(self.lab.key),), (str(known),), jump=f"{PLAIN_USER}@{self.site.login.address}")
        address = Address(node, user=PLAIN_USER, command=way)
        return Machine(MachineId(f"{self.id}/{node}"), address, self.said()[node]["host_key"], login=login)

    async def connect(self, node: str, logins: SharedLogins, *, framed: bool = True) -> Connected:
        return await command_stream.connect(self.machine(node, framed=framed), self.key, (), logins)


def programs_of(site: Cluster) -> list[str]:
    """What runs on any host as the user."""
    found = [" ".join(argv) for host in site.hosts for argv in host.processes().values()]
    return [each for each in found if any(word in each for word in ("relay.py", "step_server", "sshd: ada", "srun"))]


async def left(reached: Connected) -> None:
    reached.abort()
    await asyncio.sleep(0.2)  # in which the loop says so


@pytest.fixture
def job(cluster: Callable[..., Cluster], lab: Lab) -> Callable[..., Job]:
    return lambda *options, nodes=2, **more: Job(cluster(nodes=nodes, ssh_to_nodes=False), lab, *options, **more)


@pytest.mark.parametrize("framed", [False, True])
async def test_each_node_is_reached_and_has_what_its_step_has(job, framed):
    """And nobody listens at a port."""
    made = job("--nodes=2", "--gres=gpu:a100:1", setup='export GREETING="it\'s $SLURM_JOB_ID"')
    made.wait_nodes(2)
    logins = SharedLogins()
    ports = [host.listening() for host in made.site.nodes]
    for node in ("c0", "c1"):
        reached = await made.connect(node, logins, framed=framed)
        shell = RemoteShell(reached.connection)
        seen = await shell.run(["sh", "-c", 'echo "$(hostname) $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $GREETING"'])
        assert seen.stdout.decode() == f"{node} {made.id} 0 it's {made.id}\n"
        assert b"step_0" in (await shell.run(["cat", "/proc/self/cgroup"])).stdout or not made.site.has_cgroups
        back = bytearray()
        sent = bytes(range(256)) * (8 << 10)
        await shell.run(["cat"], stdin=sent, output=back.extend)
        assert back == sent
        await left(reached)
    assert [host.listening() for host in made.site.nodes] == ports
    until(lambda: not [each for each in programs_of(made.site) if "relay.py" in each])  # their steps have ended


async def test_more_sessions_than_a_login_host_allows_take_another_connection(job):
    made = job("--nodes=1", nodes=1)
    made.wait_nodes(1)
    made.site.login.stop_sshd()
    config = made.site.login.path("/etc/ssh/sshd_config")
    config.write_text(f"{config.read_text()}\nMaxSessions 2\n")
    made.site.login.start_sshd()
    logins = SharedLogins()
    reached = [await made.connect("c0", logins) for _ in range(5)]
    [place] = logins._places.values()
    assert sorted(shared.users for shared in place.open) == [1, 2, 2]
    for each in reached:
        assert (await RemoteShell(each.connection).run(["echo", "here"])).stdout == b"here\n"
        await left(each)


async def test_what_srun_says_is_in_the_error(job):
    made = job("--nodes=1", nodes=1)
    made.wait_nodes(1)
    machine = made.machine("c0", framed=False)
    made.site.run("scancel", made.id)
    made.site.wait_state(made.id, "CANCELLED", "COMPLETED", "FAILED")
    with pytest.raises(
        command_stream.CommandFailed, match="ended with status 1 before an SSH server was reached, and sa"
    ):
        await command_stream.connect(machine, made.key, (), SharedLogins())


async def test_a_step_ends_with_all_that_was_started_in_it(job):
    """As the client says so, while the job's other node goes on."""
    made = job("--nodes=2")
    made.wait_nodes(2)
    reached = await made.connect("c0", SharedLogins())
    await RemoteShell(reached.connection).run(["sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &"])
    await left(reached)
    folders = {name: Path(said["socket"]).parent for name, said in made.said().items()}
    made.site.run("touch", f"{FOLDER}/end.c0")
    until(lambda: set(made.said()) == {"c1"})
    first, _ = made.site.nodes
    until(lambda: ["sleep", "1000"] not in first.processes().values() and not first.path(str(folders["c0"])).exists())
    assert made.site.state(made.id) == "RUNNING"
    made.site.run("touch", f"{FOLDER}/end")
    assert made.site.wait_state(made.id, "COMPLETED", "FAILED") == "COMPLETED"
    until(lambda: not programs_of(made.site))


def test_a_job_of_which_nobody_hears_ends_with_its_lease(job):
    made = job("--nodes=2", lease_s=1)
    made.wait_nodes(2)
    assert made.site.wait_state(made.id, "COMPLETED", "FAILED", within_s=180) == "COMPLETED"
    said = made.site.run("cat", "job.out").stdout
    assert (
        sorted(line.partition(" ends: ")[2] for line in said.splitlines())
        == ["nobody has renewed its lease for 1 s"] * 2
    )
    assert made.said() == {}


async def test_a_preemption_is_a_notice_where_something_runs_and_the_end_elsewhere(job):
    made = job("--nodes=2", "--exclusive")
    made.wait_nodes(2)
    notice = made.site.node("c0").path(made.said()["c0"]["notice"])
    reached = await made.connect("c0", SharedLogins())
    stays = "trap '' TERM; while :; do sleep 0.1; done"
    await RemoteShell(reached.connection).run(["sh", "-c", f'setsid sh -c "{stays}" </dev/null >/dev/null 2>&1 &'])
    urgent = made.site.submit("--nodes=2", "--partition=urgent", script="true")
    until(notice.exists)
    assert notice.read_text() == "2"
    assert set(made.said()) <= {"c0", "c1"}
    await left(reached)
    assert made.site.wait_state(made.id, "PREEMPTED", "COMPLETED", "FAILED") == "PREEMPTED"
    assert made.site.wait_state(urgent, "COMPLETED") == "COMPLETED"
    until(lambda: not programs_of(made.site))
