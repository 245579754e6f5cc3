"""Pools on a real Slurm: reached from outside through its login host, and what becomes of their jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from cluster.cluster import HOME
from netlab import PLAIN_USER, Host

from outrider import Nodes, Pool, Slurm, compute, preemption, should_stop
from outrider.errors import OutriderError, TaskKilled
from outrider.providers.base import LaunchRequest, Machine
from outrider.providers.slurm import fleet
from outrider.testing import provider_contract

if TYPE_CHECKING:
    from cluster import Cluster

pytestmark = pytest.mark.anyio
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM_S = 600.0  # for a whole one: the digits' takes 31 s of a core, of which other tests leave a tenth at times
SETTLED, SETTLED_S = 10, 2.0  # so many times in a row in so long
LONG = provider_contract.cancelling_at_any_await_leaves_nothing
SOME = 9  # of so many awaits one is tried for each change; the others by `make nightly`
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2, lease_s=60.0)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))


@pytest.fixture
def slurm(lab: Any, tmp_path: Path) -> Callable[..., Slurm]:
    """``slurm(cluster, **options)``: a provider of this cluster, from outside."""

    def provider(made: Cluster, **options: Any) -> Slurm:
        file = tmp_path / "known_hosts"
        file.write_text(made.login.known_hosts)
        usual = {"key": lab.key, "known_hosts": file, "config": False, "partition": "main"}
        return Slurm(f"{PLAIN_USER}@{made.login.address}", **{**usual, **options})

    return provider


def steps(made: Cluster, *, off: Collection[str] = ()) -> dict[str, list[int]]:
    """The step servers that run, by node. ``off``: nodes without power."""
    return {node.name: found for node in made.nodes if node.name not in off and (found := step_servers(node))}


def step_servers(node: Host) -> list[int]:
    return [
        pid
        for pid, line in node.processes().items()
        if any(word.endswith("step_server.py") for word in line) and "srun" not in line[0]
    ]


def jobs(made: Cluster) -> list[str]:
    """The jobs that squeue shows: those that wait, run or end."""
    return made.run("squeue", "--noheader", "--format=%A %T").stdout.splitlines()


def living(made: Cluster) -> list[str]:
    """Those of which something runs: Slurm shows a job as completing while it cleans up, or a node has no power."""
    return [line for line in jobs(made) if "COMPLETING" not in line]


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=[pytest.mark.nightly] * (check is LONG)) for check in provider_contract.CHECKS],
    ids=lambda check: check.__name__,
)
async def test_contract(check: provider_contract.Check, cluster, slurm) -> None:
    made, off = cluster(nodes=2, node_timeout_s=5), set[str]()

    async def alive() -> int:
        """How many step servers there are, when those of jobs that have just begun are there."""
        seen: list[int] = []
        if not jobs(made):
            return sum(map(len, steps(made, off=off).values()))
        while len(seen) < SETTLED or len(set(seen[-SETTLED:])) > 1:
            seen.append(sum(map(len, steps(made, off=off).values())))
            await anyio.sleep(SETTLED_S / SETTLED)
        return seen[-1]

    async def kill(machine: Machine) -> None:
        while not await alive():
            pass
        off.add(node := min(steps(made)))  # its machines get their nodes in this order
        made.node(node).power_off()

    await check(
        provider_contract.Subject(provider=slurm(made), alive=alive, kill=kill, request=REQUEST, within_s=120.0)
    )
    assert living(made) == []


async def test_cancelling_at_some_awaits_leaves_nothing(cluster, slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_contract, "count", lambda first: count(first, SOME))
    await test_contract(LONG, cluster, slurm)


# --- programs ---------------------------------------------------------------------------------------------------------


NIGHTLY = pytest.mark.nightly
WHERE = ["outside", *(pytest.param(each, marks=NIGHTLY) for each in ("login", "salloc", "sbatch"))]


@pytest.mark.parametrize("where", WHERE)
async def test_the_digits_example_trains_with_only_its_provider_changed(cluster, slurm, tmp_path, where):
    """The image is named because no host of the lab reaches a package index. CI's case has half of the nodes."""
    pytest.importorskip("torch")
    nodes = 2 if where == "outside" else 4
    made = cluster(nodes=nodes)
    providers = {"outside": provider_text(slurm(made)), "login": 'Slurm(partition="main")'}
    here = f"provider={providers.get(where, 'Slurm.current()')}, image=Image(python={sys.executable!r})"
    text = (EXAMPLES / "02_digits_ddp.py").read_text().replace("provider=Local()", here)
    text = text.replace("import Local, Pool", "import Image, Slurm, Pool").replace("nodes=4", f"nodes={nodes}")
    if where == "outside":
        program = tmp_path / "02_digits_ddp.py"
        program.write_text(text)
        with anyio.fail_after(PROGRAM_S):
            ended = await anyio.run_process([sys.executable, str(program)], check=False, stderr=subprocess.STDOUT)
        said = ended.stdout.decode()
        assert ended.returncode == 0, said
    else:
        made.run("tee", "digits.py", stdin=text)
        said = await run_inside(made, where, "--nodes=4", program=f"{HOME}/digits.py")
    assert "four nodes:" in said
    await until(lambda: jobs(made) == [])
    assert left(made) == []


# --- what tasks have --------------------------------------------------------------------------------------------------


@compute
def seen(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


@compute
def takes(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


async def test_tasks_have_their_steps_devices_and_variables(cluster, slurm):
    provider = slurm(made := cluster(nodes=2), gres="gpu:a100:1", setup=["export FROM_SETUP='a \"b\"'"])
    async with Pool(provider=provider, nodes=2, console="silent") as pool:
        found = await pool.broadcast(seen("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "FROM_SETUP", "SLURMD_NODENAME"))
        assert sorted(str(each.pop("SLURMD_NODENAME")) for each in found) == ["c0", "c1"]
        job = jobs(made)[0].split()[0]
        assert found == [{"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": job, "FROM_SETUP": 'a "b"'}] * 2
        ours = [port for host in made.hosts for port in host.listening() if port not in {22, 6817, 6818}]
        assert [port for port in ours if not 60001 <= port <= 60999] == []  # srun's own
        began = time.monotonic()
    assert time.monotonic() - began < 100.0
    assert living(made) == []
    assert left(made) == []


async def test_steps_are_reached_by_the_nodes_own_ssh_where_that_is_asked_for(cluster, slurm):
    async with Pool(provider=slurm(cluster(nodes=2), reach="ssh", gres="gpu:1"), nodes=2, console="silent") as pool:
        assert await pool.broadcast(seen("CUDA_VISIBLE_DEVICES")) == [{"CUDA_VISIBLE_DEVICES": "0"}] * 2


@pytest.mark.parametrize("open_to_ssh", [True, False])
async def test_a_pool_finds_out_whether_its_nodes_let_it_in_by_ssh(cluster, slurm, open_to_ssh, monkeypatch):
    for name in ("PATIENCE_S", "ASK_S"):  # a login takes long where other tests run
        monkeypatch.setattr(fleet, name, 100.0 if open_to_ssh else getattr(fleet, name))
    made = cluster(nodes=2, ssh_to_nodes=open_to_ssh)
    async with Pool(provider=slurm(made), nodes=2, console="silent") as pool:
        rank_variables = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        assert await pool.broadcast(seen(*rank_variables)) == [dict.fromkeys(rank_variables)] * 2
        relays = [line for line in made.login.processes().values() if "relay.py" in " ".join(line)]
        assert relays
        assert any(line[0] == "ssh" for line in relays) == open_to_ssh, relays


async def test_a_task_beyond_the_memory_of_its_job_is_killed_and_told_why(cluster, slurm):
    made = cluster(nodes=1)
    if not made.has_cgroups:
        pytest.skip("this kernel has no control groups of version 1")
    async with Pool(provider=slurm(made), nodes=1, memory_gb=0.5, console="silent") as pool:
        with pytest.raises(TaskKilled) as killed:
            await pool.run(takes(800))
        assert killed.value.out_of_memory
        assert "--mem=500M" in str(killed.value)
        assert await pool.run(takes(10)) == 10 << 20


async def test_a_wrong_key_of_the_login_host_is_refused(cluster, slurm):
    made = cluster(nodes=1)
    provider = slurm(made)
    Path(provider.known_hosts[0]).write_text(
        made.node("c0").known_hosts.replace(made.node("c0").address, made.login.address)
    )
    with pytest.raises(OutriderError, match="host key"):
        async with Pool(provider=provider, nodes=1, console="silent"):
            pass
    assert jobs(made) == []


# --- the queue --------------------------------------------------------------------------------------------------------


async def test_waiting_in_the_queue_is_not_booting(cluster, slurm, capfd):
    made = cluster(nodes=1)
    made.run("sbatch", "--exclusive", "--wrap=sleep 33")
    began = time.monotonic()
    async with Pool(provider=slurm(made), nodes=1, boot_timeout=30, console="plain") as pool:
        assert await pool.run(seen("SLURM_JOB_ID")) == {"SLURM_JOB_ID": "2"}
    assert time.monotonic() - began > 30
    assert re.search(r"in the queue: job 2 pending: (Resources|Priority) \(", capfd.readouterr().err)


async def test_a_job_that_starts_too_late_is_given_up_and_gone(cluster, slurm):
    made = cluster(nodes=1)
    made.run("sbatch", "--exclusive", "--wrap=sleep 300")
    with pytest.raises(OutriderError, match="job 2"):
        async with Pool(provider=slurm(made), nodes=1, start_timeout=4, console="silent"):
            pass
    assert [line.split()[0] for line in jobs(made)] == ["1"]


async def test_a_job_that_will_never_start_fails_at_once(cluster, slurm):
    made = cluster(nodes=1)
    with pytest.raises(OutriderError, match=r"never start|never has so many|No node has") as caught:
        async with Pool(provider=slurm(made), nodes=1, memory_gb=5000, console="silent"):
            pass
    assert "slurm" in str(caught.value).lower() or "sbatch" in str(caught.value)
    assert jobs(made) == []


@pytest.mark.parametrize(
    ("options", "of_pool", "words"),
    [
        ({"options": {"nosuch": "1"}}, {}, "unrecognized option"),
        ({"options": {"dependency": "after:abc"}}, {}, "Job dependency problem"),
        ({"gres": "gpu:1"}, {"accelerator": "H100"}, "the driver of c0 shows none"),
    ],
    ids=["unknown option", "wrong value", "another GPU"],
)
async def test_a_request_that_cannot_be_met_is_made_once(cluster, slurm, options, of_pool, words):
    made = cluster(nodes=1)
    last = made.submit("--begin=now+1hour", script="true")
    with pytest.raises(OutriderError, match=words):
        async with Pool(provider=slurm(made, **options), nodes=1, console="silent", **of_pool):
            pass
    assert int(made.submit("--begin=now+1hour", script="true")) - int(last) <= 2


def provider_text(provider: Slurm) -> str:
    return (
        f"Slurm({provider.host!r}, partition={provider.partition!r}, key={provider.key!r}, "
        f"known_hosts={list(provider.known_hosts)!r}, config=False)"
    )


def left(made: Cluster) -> list[str]:
    """The processes and files of ours on the cluster, beside the cache."""
    running = [line for host in made.hosts for line in host.processes().values() if "outrider" in " ".join(line)]
    folders = made.run("sh", "-c", "ls -A ~/.cache/outrider/jobs", check=False).stdout.split()
    return [*map(" ".join, running), *folders]


# --- losses -----------------------------------------------------------------------------------------------------------


@compute
def steps_of(until: str, pause_s: float = 0.1) -> tuple[str, int]:
    """Work until a file appears on the shared disk; how often it was begun is in another one."""
    import socket

    with Path(until).with_suffix(".begun").open("a") as begun:
        begun.write("x")
    while not Path(until).exists():
        time.sleep(pause_s)
    return socket.gethostname(), should_stop()


async def until(condition: Callable[[], object], within_s: float = 120.0, every_s: float = 0.05) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(every_s)


async def begun(made: Cluster, times: int) -> None:
    path = made.login.path(f"{HOME}/work.begun")
    await until(lambda: path.exists() and len(path.read_text()) >= times)


@pytest.mark.parametrize("how", ["scancel", "power cut"])
async def test_a_lost_job_or_node_is_replaced_and_its_task_runs_again(cluster, slurm, how):
    made = cluster(nodes=3, node_timeout_s=5)
    async with Pool(provider=slurm(made, exclusive=True), nodes=2, console="silent") as pool:
        both = [pool.submit(steps_of(f"{HOME}/work")) for _ in range(2)]
        await begun(made, 2)
        if how == "scancel":
            made.run("scancel", "1")
        else:
            made.node("c1").power_off()
        await begun(made, 4 if how == "scancel" else 3)
        made.run("touch", f"{HOME}/work")
        hosts = {(await job)[0] for job in both}
        assert len(hosts) == 2
    assert living(made) == []


async def test_one_of_a_jobs_nodes_is_given_back(cluster, slurm):
    made = cluster(nodes=3)
    async with Pool(provider=slurm(made), nodes=Nodes(min=2, desired=3), console="silent") as pool:
        await until(lambda: len(steps(made)) == 3)
        pool.resize(2)
        await until(lambda: len(steps(made)) == 2)
        first = sorted(steps(made))[0] == "c0"  # else the node that has left has the batch shell, and stays allocated
        await until(lambda: len(made.idle()) == first)
        assert await pool.run(seen("SLURM_JOB_ID")) == {"SLURM_JOB_ID": "1"}
    assert living(made) == []


async def test_the_time_limit_is_a_notice(cluster, slurm):
    provider = slurm(cluster(nodes=1), time="1")
    async with Pool(provider=provider, nodes=1, console="silent") as pool:
        found = await pool.run(waits_for_the_notice())
        assert found is not None
        assert 5 <= found <= 15  # a quarter of the minute; Slurm may say so a minute early


async def test_a_preemption_is_a_notice_of_the_partitions_grace(cluster, slurm):
    made = cluster(nodes=1, grace_s=20)
    async with Pool(provider=slurm(made, exclusive=True), nodes=1, console="silent") as pool:
        noticed = pool.submit(waits_for_the_notice())
        await until(lambda: jobs(made) == ["1 RUNNING"])
        await anyio.sleep(1)
        urgent = made.submit("--partition=urgent", "--exclusive", script="true")
        found = await noticed
        assert found is not None
        assert 10 <= found <= 20
        await until(lambda: made.state(urgent) == "COMPLETED")
        assert await pool.run(seen("SLURM_JOB_ID")) == {"SLURM_JOB_ID": "3"}


@compute
def waits_for_the_notice() -> float | None:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        if (found := preemption()) is not None:
            return found.seconds_left
        time.sleep(0.1)
    return None


# --- clients that die -------------------------------------------------------------------------------------------------

DIES = """
import os, signal
from outrider import Pool, Slurm, compute
with Pool(provider=PROVIDER, nodes=2, lease=LEASE, console="silent") as pool:
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def killed(provider: Slurm, lease_s: float) -> None:
    text = DIES.replace("PROVIDER", provider_text(provider)).replace("LEASE", str(lease_s))
    ended = await anyio.run_process([sys.executable, "-c", text], check=False)
    assert ended.returncode == -9, ended.stderr.decode()


async def test_nothing_outlives_the_lease_of_a_killed_client(cluster, slurm):
    made = cluster(nodes=2)
    await killed(slurm(made), 20.0)
    assert [line.split()[1] for line in jobs(made)] == ["RUNNING"]
    await until(lambda: jobs(made) == [], within_s=180.0)
    assert steps(made) == {}


async def test_a_job_whose_batch_shell_has_died_with_its_node_ends_with_its_last_step(cluster, slurm):
    made = cluster(nodes=2, node_timeout_s=5)
    await killed(slurm(made, exclusive=True), 10.0)
    made.node("c0").power_off()
    await until(lambda: living(made) == [], within_s=180.0)


async def test_gc_ends_the_jobs_of_a_killed_client_and_no_others(cluster, slurm):
    made = cluster(nodes=2)
    other = made.submit("--nodes=1", "--comment=outrider:else:ada@here:0123", script="sleep 1000")
    await killed(slurm(made), 600.0)
    assert len(jobs(made)) == 2
    command = [sys.executable, "-c", "import sys; from outrider.engine.cli.main import main; sys.exit(main())"]
    wide = {**os.environ, "COLUMNS": "200"}
    shown, ended = [
        (await anyio.run_process([*command, *words], check=False, stderr=subprocess.STDOUT, env=wide)).stdout.decode()
        for words in (["ps"], ["gc", "--apply"])
    ]
    assert [line.split()[0] for line in jobs(made)] == [other], (shown, ended)
    assert "1 job of 2 nodes" in shown, shown
    made.run("scancel", other)
    await until(lambda: left(made) == [])


async def test_a_killed_clients_steps_are_taken_over_and_exec_reaches_them(cluster, slurm):
    made = cluster(nodes=2)
    text = DIES.replace("PROVIDER", provider_text(slurm(made))).replace("LEASE", "60, name='left'")
    ended = await anyio.run_process([sys.executable, "-c", text], check=False)
    assert ended.returncode == -9, ended.stderr.decode()
    async with Pool.attach("left", provider=slurm(made), nodes=2, console="silent") as pool:
        assert await pool.broadcast(seen("SLURM_JOB_ID")) == [{"SLURM_JOB_ID": "1"}] * 2
        command = "import sys; from outrider.engine.cli.main import main; sys.exit(main())"
        words = [sys.executable, "-c", command, "exec", "c1", "--", "sh", "-c", "echo $SLURMD_NODENAME"]
        said = await anyio.run_process(words, check=False)
        assert said.stdout.decode().split()[-1:] == ["c1"], said.stderr.decode()
    assert living(made) == []


# --- inside of the cluster --------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from outrider import Image, Pool, Slurm, compute

@compute
def where(x):
    import os, socket
    return socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["SLURM_JOB_ID"]

if __name__ == "__main__":
    provider = PROVIDER
    with Pool(provider=provider, nodes=2, console="silent") as pool:
        print(sorted(where(1) @ pool), flush=True)
"""


async def run_inside(made: Cluster, how: str, *job: str, program: str) -> str:
    """Run a program on the login host, or in a job that salloc or sbatch makes; returns what it prints."""
    python = [sys.executable, program]
    if how == "login":
        return made.run(*python, limit_s=PROGRAM_S).stdout
    if how == "salloc":
        return made.run("salloc", "--quiet", *job, *python, limit_s=PROGRAM_S).stdout
    number = made.submit(*job, script=" ".join(python))
    goes_on = {"PENDING", "RUNNING", "COMPLETING"}  # asked seldom: each squeue takes of the program's processor
    await until(lambda: made.state(number) not in goes_on, within_s=PROGRAM_S, every_s=0.5)
    return made.run("cat", f"slurm-{number}.out").stdout


@pytest.mark.parametrize("how", ["login", "salloc", "sbatch"])
async def test_a_program_inside_of_the_cluster(cluster, how):
    made = cluster(nodes=2)
    provider = 'Slurm(partition="main", gres="gpu:a100:1")' if how == "login" else "Slurm.current()"
    made.run("tee", "program.py", stdin=PROGRAM.replace("PROVIDER", provider))
    said = await run_inside(made, how, "--nodes=2", "--gres=gpu:a100:1", program=f"{HOME}/program.py")
    assert said.splitlines()[-1] == "[('c0', '0', '1'), ('c1', '0', '1')]", said
    await until(lambda: jobs(made) == [])
    assert left(made) == []
