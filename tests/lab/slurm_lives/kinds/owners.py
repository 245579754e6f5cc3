"""What becomes of the jobs of clients that end, or are ended."""

from __future__ import annotations

import time

from lives.clients import until

from ..life import Kind, Life
from ..referee import LEAVING_S
from ..site import Client

POINTS = ("submit", "queue", "boot", "work", "leave")
BEGUN_S = 60.0


def left(life: Life) -> None:
    """a client leaves its block of 1 to 4 nodes: 2 s later nothing is there"""
    client = life.client(nodes=life.dice.randint(1, 4), rounds=life.dice.randint(0, 2), round_s=0.2)
    life.ready(client)
    client.wait("closed", BEGUN_S + LEAVING_S)
    there = [f"job {job.id} {job.state}" for job in life.site.living(client)]
    life.expect(not there, f"SLURM-3: its block is left, and there are {', '.join(there)}")
    life.end(client)


def killed(life: Life) -> None:
    """SIGKILL while it submits, waits in the queue, boots, works or leaves, beside others; then its lease, or a gc"""
    point, share = life.dice.choice(POINTS), life.site.share
    living = life.client(nodes=1, waits=True, rounds=1, lease_s=60.0)
    life.ready(living)
    kept = life.job(living).id
    life.stranger(pool="theirs-0a1b2c")
    blocker = share.submit("--nodes=3", "--exclusive", script="sleep 300") if point == "queue" else ""
    victim = life.client(nodes=life.dice.randint(1, 2), goes_on=point == "work", rounds=1, lease_s=4.0)
    _dies(life, victim, point)
    if blocker:
        share.cluster.run("scancel", blocker)
    for pool in {job.pool for job in life.site.jobs(victim)}:
        life.stranger(pool=pool)  # the label of somebody who has copied our comment
    life.collects = life.dice.random() < 0.5
    if not life.collects:
        life.jobs_end()
    gc = life.site.gc("--apply")
    life.expect(gc.status == 0, f"SLURM-6: gc beside a living pool exits with {gc.status}: {gc.text}")
    there = {job.id for job in life.site.living(victim)}
    life.expect(not there, f"SLURM-6: gc left jobs {', '.join(sorted(there))}: {gc.text}")
    kept_now = kept in {job.id for job in life.site.living(living)}
    life.expect(kept_now, f"SLURM-5: gc ended job {kept} of a living pool: {gc.text}")
    living.go()
    life.end(living)


def _dies(life: Life, victim: Client, point: str) -> None:
    """At that point of its life."""
    match point:
        case "submit":
            victim.wait("begun", BEGUN_S)
            life.passes(0.0, 1.5)
        case "queue":
            until(lambda: [job for job in life.site.living(victim) if job.state == "PENDING"], BEGUN_S, "it waits")
            life.passes(0.0, 2.0)
        case "boot":
            until(lambda: [job for job in life.site.living(victim) if job.state == "RUNNING"], BEGUN_S, "it runs")
            life.passes(0.0, 1.5)
        case "work":
            life.ready(victim)
            life.passes(0.0, 2.0)
        case _:
            victim.wait("done", BEGUN_S)
            time.sleep(life.dice.uniform(0.0, 0.6))
    life.kill(victim)


KINDS = (Kind("killed", killed), Kind("left", left))
