"""What befalls jobs and nodes: Slurm ends them, somebody does, a node has no power, nobody answers for Slurm."""

from __future__ import annotations

import time

from lives.clients import until

from ..life import Kind, Life
from ..referee import MENDED_S
from ..site import Client

LIMIT_S = 150.0  # Slurm looks at time limits twice a minute, and ends a job of one minute up to 30 s late
LOST_S = 60.0  # no loss takes so long to mend
# A slurmctld writes down within 5 s what has become of jobs. One that is killed before shows a job that runs as
# pending, starts it once more, and drains its nodes for "Duplicate jobid".
SAVED_S = 6.0
WAIT_S = 30.0


def time_limit(life: Life) -> None:
    """the job's time limit of a minute comes in the middle of the work"""
    nodes = life.dice.randint(1, 2)
    client = life.client(nodes=nodes, time="1", goes_on=True, surplus=2 * nodes, round_s=life.dice.uniform(0.2, 1.0))
    life.ready(client)
    first = life.job(client).id
    until(lambda: first not in {job.id for job in life.site.living(client)}, LIMIT_S, f"job {first} is over")
    _goes_on(life, client, time.time())
    pauses = [word["at"] - word["began"] - client.wish.round_s for word in client.said("round")]
    life.measured.append(("longest pause", max(pauses)))
    _ends(life, client)


def preempted(life: Life) -> None:
    """a job of a higher partition takes the nodes, after the grace of 2, 5 or 10 s"""
    nodes, grace_s, share = life.dice.randint(1, 2), life.dice.choice((2, 5, 10)), life.site.share
    share.cluster.login.run("scontrol", "update", f"PartitionName={share.partition}", f"GraceTime={grace_s}")
    client = life.client(nodes=nodes, goes_on=True, surplus=nodes)
    life.ready(client)
    first = life.job(client).id
    life.passes(0.0, 2.0)
    wants = life.dice.randint(len(share.nodes) - nodes + 1, len(share.nodes))
    urgent = share.submit(f"--nodes={wants}", "--exclusive", urgent=True, script=f"sleep {life.dice.randint(1, 4)}")
    until(lambda: first not in {job.id for job in life.site.living(client)}, WAIT_S, f"job {first} is over")
    share.cluster.wait_state(urgent, "COMPLETED")
    life.measured.append(("mending", _goes_on(life, client, time.time())))
    _ends(life, client)


def power_cut(life: Life) -> None:
    """a node of 2 or 3 has no power any more, the batch shell's or another one; another node is idle"""
    nodes = life.dice.randint(2, 3)
    client = life.client(nodes=nodes, goes_on=True, surplus=1, completing=True)
    life.ready(client)
    hosts = life.site.hosts(life.job(client))
    rank, silent = life.dice.randrange(nodes), life.dice.random() < 0.5
    life.passes(0.0, 2.0)
    life.site.share.power_off(hosts[rank], silent=silent)
    _mends(life, client, time.time(), f"the loss of node {rank} of {nodes}")
    _ends(life, client)


def scancel(life: Life) -> None:
    """somebody cancels the job, gently or by force, or one of its steps"""
    nodes, how = life.dice.randint(1, 3), life.dice.choice(("job", "killed", "step"))
    client = life.client(nodes=nodes, goes_on=True, surplus=nodes, completing=True)
    life.ready(client)
    job = life.job(client).id
    life.passes(0.0, 2.0)
    words = {"job": [job], "killed": ["--full", "--signal=KILL", job], "step": [f"{job}.0"]}[how]
    life.site.share.cluster.run("scancel", *words)
    _mends(life, client, time.time(), f"scancel {' '.join(words)}")
    _ends(life, client)


def controller_down(life: Life) -> None:
    """slurmctld ends or is killed in mid-run, and is back after 3 to 15 s; some clients leave meanwhile"""
    signal, leaves = life.dice.choice(("TERM", "KILL")), life.dice.random() < 0.3
    # It has not heard that the steps ended, and asks their nodes again after two minutes.
    client = life.client(nodes=life.dice.randint(1, 3), goes_on=True, leaving_s=None, completing=leaves)
    life.ready(client)
    life.passes(*((0.0, 2.0) if signal == "TERM" else (SAVED_S, SAVED_S + 2.0)))
    cluster = life.site.share.cluster
    cluster.stop_controller(signal=signal)
    try:
        away = time.time()
        if leaves:
            client.go()
        life.passes(3.0, 15.0)
        rounds = [word for word in client.said("round") if word["began"] >= away]
        life.expect(leaves or rounds, "SLURM-9: no round began and ended while the controller was away")
    finally:
        cluster.start_controller()
    if not leaves:
        _goes_on(life, client, time.time())
    _ends(life, client)


def _goes_on(life: Life, client: Client, since: float) -> float:
    return life.mended(client, since, LOST_S)


def _mends(life: Life, client: Client, since: float, what: str) -> None:
    took_s = _goes_on(life, client, since)
    life.measured.append(("mending", took_s))
    life.expect(took_s <= MENDED_S, f"SLURM-7: {what} was mended after {took_s:.1f} s")


def _ends(life: Life, client: Client) -> None:
    client.go()
    life.end(client)


KINDS = (
    Kind("time-limit", time_limit),
    Kind("preempted", preempted),
    Kind("power-cut", power_cut),
    Kind("scancel", scancel),
    Kind("controller-down", controller_down, alone=True),
)
