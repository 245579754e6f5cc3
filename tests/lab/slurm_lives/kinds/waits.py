"""Jobs wait in the queue."""

from __future__ import annotations

from lives.clients import until
from lives.records import events

from ..life import READY_S, Kind, Life

BOOT_TIMEOUT_S = 20.0
LATE_S = 10.0  # from the moment when a job is given up to the client's end


def queued(life: Life) -> None:
    """other jobs hold the nodes for 5 to 20 s longer than the boot timeout: it is told so, and opens"""
    lasts_s = round(life.dice.uniform(BOOT_TIMEOUT_S + 5.0, BOOT_TIMEOUT_S + 20.0))
    share = life.site.share
    blocker = share.submit(f"--nodes={len(share.nodes)}", "--exclusive", "--time=2", script=f"sleep {lasts_s}")
    share.cluster.wait_state(blocker, "RUNNING")
    client = life.client(nodes=life.dice.randint(1, 4), boot_timeout_s=BOOT_TIMEOUT_S, rounds=1)
    client.wait("ready", lasts_s + READY_S)
    life.end(client)
    waits = events(life.site.state, "node_queued")
    reasons = [word["reason"] for word in waits]
    life.expect(
        any("Resources" in each or "Priority" in each for each in reasons),
        f"SLURM-8: it was told of the queue: {reasons}",
    )
    life.expect(any(word.get("starts_at") for word in waits), f"SLURM-8: it was told no start: {waits}")
    [job] = life.site.jobs(client)
    waited_s = (job.started or 0.0) - job.submitted
    life.expect(waited_s > BOOT_TIMEOUT_S, f"SLURM-8: the job waited {waited_s:.0f} s, which proves nothing")
    life.measured.append(("in the queue", waited_s))


def too_late(life: Life) -> None:
    """other jobs hold the nodes for longer than its start timeout: it is told so by a typed error, the job is gone"""
    share, limit_s = life.site.share, life.dice.uniform(1.0, 5.0)
    blocker = share.submit(f"--nodes={len(share.nodes)}", "--exclusive", script="sleep 300")
    share.cluster.wait_state(blocker, "RUNNING")
    client = life.client(nodes=life.dice.randint(1, 2), start_timeout_s=limit_s, fits=("StartTimeout",), whole=False)
    until(lambda: life.site.jobs(client) or client.ended_at, 30.0, "it has a job")
    life.end(client)
    took_s = client.ended_at - (life.site.jobs(client)[0].submitted + limit_s)
    life.measured.append(("after the timeout", took_s))
    life.expect(took_s <= LATE_S, f"SLURM-8: its job was given up {took_s:.1f} s after the start timeout")
    life.expect(not life.site.living(client), "SLURM-3: the job that was given up is left")
    share.cluster.run("scancel", blocker)


KINDS = (Kind("queued", queued), Kind("too-late", too_late))
