"""What a real Slurm does, as far as ways to its nodes, their losses and their ends are built upon it."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from netlab import Host, leftovers
from netlab.state import locked

if TYPE_CHECKING:
    from cluster import Cluster

STEP_SERVER = """
import os, socket, subprocess
folder = os.path.expanduser("~/step-" + os.environ["SLURMD_NODENAME"])
os.mkdir(folder, 0o700)
subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder + "/key"], check=True)
with open(folder + "/config", "w") as config:
    seen = " ".join(f"{name}={os.environ[name]}" for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"))
    config.write(f"HostKey {folder}/key\\nUsePAM no\\nPidFile none\\nStrictModes no\\nSetEnv {seen}\\n")
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/new")
listener.listen()
os.rename(folder + "/new", folder + "/door")
while True:
    came = listener.accept()[0]
    subprocess.Popen(["/usr/sbin/sshd", "-i", "-f", folder + "/config"], stdin=came, stdout=came)
    came.close()
"""
RELAY = """
import os, socket, sys, threading
door = socket.socket(socket.AF_UNIX)
door.connect(sys.argv[1])
def copy(read, write):
    while data := read(65536):
        write(data)
    os._exit(0)
threading.Thread(target=copy, args=(door.recv, lambda data: os.write(1, data))).start()
copy(lambda size: os.read(0, size), door.sendall)
"""
DOORS = ["step-c0/door", "step-c1/door"]
HANGS_S = 4  # the handshake takes 0.4 s where it passes


@pytest.fixture
def slurm(cluster: Callable[..., Cluster]) -> Cluster:
    return cluster(nodes=2)


def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def running(slurm: Cluster, *options: str, script: str = "sleep 1000") -> str:
    job = slurm.submit("--no-kill", "--no-requeue", *options, script=script)
    slurm.wait_state(job, "RUNNING")
    return job


def needs_cgroups(slurm: Cluster) -> None:
    if not slurm.has_cgroups:
        pytest.skip("this kernel has no control groups of version 1")


def output(slurm: Cluster, name: str) -> str:
    return slurm.run("cat", name, check=False).stdout


# --- the lab itself ---------------------------------------------------------------------------------------------------


def test_a_job_has_nodes_devices_and_one_home(slurm):
    job = slurm.submit("--nodes=2", "--gres=gpu:a100:2", script="srun sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES'")
    assert slurm.wait_state(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert sorted(output(slurm, f"slurm-{job}.out").splitlines()) == ["c0 0,1", "c1 0,1"]


def test_nodes_are_closed_but_for_slurm_and_each_other(cluster):
    made = cluster(nodes=2, ssh_to_nodes=False)
    first, second = made.nodes
    server = first.spawn("python3", "-m", "http.server", "9000")
    try:
        until(lambda: 9000 in first.listening())
        at = first.address
        assert [reaches(made.login, at, port, within_s=0.3) for port in (9000, 22)] == [False, False]
        assert reaches(made.login, at, 6818)
        assert reaches(second, at, 9000)  # as frameworks need it
        assert reaches(second, made.login.address_on(made.network), 6817)
    finally:
        server.kill()
    assert made.network.controller is None  # this machine is no neighbour of theirs
    socket.create_connection((made.login.address, 22), 60).close()
    with pytest.raises(OSError, match="timed out"):
        socket.create_connection((made.login.address, 6817), 0.3)


def test_a_cluster_leaves_nothing(lab, cluster):
    made = cluster(nodes=2)
    running(made, "--nodes=2", script="setsid sleep 1000 & srun sleep 1000")
    made.nodes[1].power_off()
    with locked():
        lab.close()
        assert leftovers(lab.number) == []


# --- the ways to a node -----------------------------------------------------------------------------------------------


def test_ssh_passes_through_srun_unbuffered_alone(slurm):
    """Without ``--unbuffered``, slurmstepd passes on whole lines alone, and a handshake is none."""
    job = running(slurm, "--nodes=2", "--gres=gpu:1", script=f"exec srun python3 -c {shlex.quote(STEP_SERVER)}")
    until(lambda: slurm.run("sh", "-c", "ls step-*/door", check=False).stdout.split() == DOORS)
    slurm.run("sh", "-c", "for n in c0 c1; do echo step-$n $(cat step-$n/key.pub); done >pinned")
    inside = "echo $(hostname) $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID; grep -o step_0 /proc/self/cgroup"

    def ssh(node: str, *options: str) -> subprocess.CompletedProcess[str]:
        relay = ["python3", "relay.py", f"step-{node}/door"]
        step = ["srun", *options, "--quiet", f"--jobid={job}", "--overlap", "-N1", "-n1", f"--nodelist={node}", *relay]
        known = ["-o", "UserKnownHostsFile=pinned", "-o", f"HostKeyAlias=step-{node}", "-o", "BatchMode=yes"]
        proxy = ["-o", f"ProxyCommand={shlex.join(step)}"]
        limit = ["timeout", "--kill-after=30", str(60 if options else HANGS_S)]
        return slurm.run(*limit, "ssh", *known, *proxy, node, inside, check=False)

    slurm.run("tee", "relay.py", stdin=RELAY)
    for node in ("c0", "c1"):
        assert ssh(node, "--unbuffered").stdout.split()[:3] == [node, "0", job]
    done = ssh("c0")
    assert (done.returncode, done.stdout) == (124, "")


def test_ssh_to_a_node_needs_a_job_there_and_has_no_devices(slurm):
    needs_cgroups(slurm)
    ssh = ("ssh", "-o", "BatchMode=yes")
    refused = slurm.run(*ssh, "c0", "true", check=False)
    assert refused.returncode == 255
    assert "Access denied by pam_slurm_adopt: you have no active jobs on this node" in refused.stderr
    job = running(slurm, "--nodelist=c0", "--gres=gpu:2")
    inside = "echo $SLURM_JOB_ID-$CUDA_VISIBLE_DEVICES-; setsid sleep 1000 >/dev/null 2>&1 &"
    assert slurm.run(*ssh, "c0", inside).stdout.split() == [f"{job}--"]
    assert slurm.run(*ssh, "c1", "true", check=False).returncode == 255
    until(lambda: ["sleep", "1000"] in slurm.node("c0").processes().values())
    slurm.run("scancel", job)
    until(lambda: ["sleep", "1000"] not in slurm.node("c0").processes().values())


# --- what ends jobs, and parts of them --------------------------------------------------------------------------------


def test_memory_beyond_the_jobs_is_a_kill(slurm):
    needs_cgroups(slurm)
    job = slurm.submit("--mem=50M", script="python3 -c 'bytearray(200 << 20)'")
    assert slurm.wait_state(job, "COMPLETED", "FAILED", "OUT_OF_MEMORY") == "OUT_OF_MEMORY"


def test_a_node_can_be_given_back_and_the_batch_shells_cannot(slurm):
    job = running(slurm, "--nodes=2", script="srun -K0 sh -c 'echo up >>up; sleep 1000'")
    until(lambda: output(slurm, "up") == "up\nup\n")  # a step that is still starting would end with its node
    assert slurm.idle() == set()
    refused = slurm.run("scontrol", "update", f"JobId={job}", "NodeList=c1", check=False)
    assert "Invalid node name specified for job" in refused.stderr
    slurm.run("scontrol", "update", f"JobId={job}", "NodeList=c0")
    until(lambda: slurm.idle() == {"c1"})
    assert slurm.state(job) == "RUNNING"
    assert slurm.run("srun", f"--jobid={job}", "--overlap", "hostname").stdout == "c0\n"


def test_a_signal_to_the_batch_shell_reaches_it_alone(slurm):
    step = "trap 'echo step >>heard' USR1 TERM; echo up >>up; while :; do sleep 0.05; done"
    job = running(
        slurm, script=f"trap 'echo shell >>heard' USR1; srun sh -c {shlex.quote(step)} & while :; do wait; done"
    )
    until(lambda: output(slurm, "up"))
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    until(lambda: output(slurm, "heard"))
    slurm.run("scancel", "--signal=USR1", job)  # to the steps, and not to the shell
    until(lambda: output(slurm, "heard") == "shell\nstep\n")


def test_a_preempted_job_hears_of_it_in_its_steps(slurm):
    step = "trap 'echo step >>heard' TERM; echo up >>up; while :; do sleep 0.05; done"
    script = f"trap 'echo shell >>heard' TERM; srun -K0 sh -c {shlex.quote(step)} & while :; do wait; done"
    job = running(slurm, "--nodes=2", "--exclusive", script=script)
    until(lambda: output(slurm, "up") == "up\nup\n")
    urgent = slurm.submit("--nodes=2", "--partition=urgent", script="true")
    until(lambda: output(slurm, "heard"))
    assert slurm.state(job) == "RUNNING"
    assert "shell" not in output(slurm, "heard")
    assert slurm.wait_state(job, "PREEMPTED") == "PREEMPTED"
    assert slurm.wait_state(urgent, "COMPLETED") == "COMPLETED"


@pytest.mark.parametrize("lost", ["c0", "c1"])
def test_a_job_outlives_a_node(cluster, lost):
    """Also the one with its batch shell, c0, and its steps go on without the srun that began them."""
    made = cluster(nodes=2, node_timeout_s=5)
    job = running(
        made, "--nodes=2", script="srun -K0 --no-kill sh -c 'while :; do date >>beat-$SLURM_NODEID; sleep 0.2; done'"
    )
    [left] = {"c0", "c1"} - {lost}
    rank = left.removeprefix("c")
    until(lambda: output(made, f"beat-{rank}"))
    made.node(lost).power_off()
    until(lambda: made.nodes_of(job) == left)
    assert made.state(job) == "RUNNING"
    so_far = output(made, f"beat-{rank}")
    until(lambda: len(output(made, f"beat-{rank}")) > len(so_far))
    assert made.run("srun", f"--jobid={job}", "--overlap", "-N1", "hostname").stdout == f"{left}\n"
    made.power_on(made.node(lost))
    until(lambda: lost in made.idle())


def reaches(host: Host, address: str, port: int, *, within_s: float = 60.0) -> bool:
    connect = f"import socket; socket.create_connection(({address!r}, {port}), {within_s})"
    return host.run("python3", "-c", connect, check=False).returncode == 0
