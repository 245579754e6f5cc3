"""What a life may not show, decided from its facts alone.

CHAOS-1 to CHAOS-4, and CHAOS-11: see `lives.ends`.
SLURM-1: no call of sbatch makes two jobs.
SLURM-2: a client asks for no more nodes in all than it wants, and has lost.
SLURM-3: it leaves its block in `LEAVING_S`, and none of its jobs is left then, but for those that Slurm is ending as a
node of theirs has no power, or as somebody has cancelled them: what they run is to be gone.
SLURM-4: of a killed client no job is left when its lease and the minute after it are over.
SLURM-5: other people's jobs stay, and so do those of clients that live.
SLURM-6: `outrider gc --apply` afterwards exits with 0; no job, process or folder of ours is left then.
SLURM-7: work goes on in `MENDED_S` after a loss, when nodes are idle.
SLURM-8: what a job waits for is told, and when it is expected to start; the wait is no part of its boot.
SLURM-9: what runs goes on while the controller is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lives import ends

from .queue import Job

SHUTDOWN_S = 60.0  # what the guarantee allows beyond the lease
CLOCK_S = 1.5  # Slurm's times are whole seconds
LEAVING_S = 2.0
MENDED_S = 15.0
# States of jobs that Slurm has ended. It preempts with a grace by giving a job less time, looks at that twice a minute,
# and calls it a timeout where the nodes were not needed any more.
TAKEN = {"PREEMPTED", "TIMEOUT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(ends.Ended):
    """A client that has ended. ``surplus``: nodes that it asks for beside those it wants, for those it has lost.

    ``leaving_s``: in which it may leave its block; None: nobody answers for Slurm. ``completing``: Slurm may
    show its jobs for a while, as nodes of theirs have no power, or as somebody has cancelled one.
    """

    nodes: int
    lease_s: float
    jobs: Sequence[Job] = ()
    surplus: int = 0
    leaving_s: float | None = LEAVING_S
    completing: bool = False

    @property
    def left_in_s(self) -> float | None:
        """How long it took to leave its block; None: it did not."""
        done, closed = self.said("done"), self.said("closed")
        return closed[0]["at"] - done[0]["at"] if done and closed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A life. ``left``: of ours, after the last gc."""

    clients: Sequence[Ended]
    found: Sequence[str] = field(default=())  # what the play itself has seen
    gc_status: int = 0
    gc_text: str = ""
    left: Sequence[str] = ()


def judge(facts: Facts) -> list[str]:
    """What the life has broken, in words that begin with the rule; empty: nothing."""
    found = [each for client in facts.clients for each in _client(client)]
    tokens = Counter(job.token for client in facts.clients for job in client.jobs)
    found += [f"SLURM-1: {count} jobs of the call {token}" for token, count in tokens.items() if count > 1]
    found += facts.found
    if facts.gc_status != 0:
        found.append(f"SLURM-6: gc exits with {facts.gc_status}: {facts.gc_text}")
    return found + [f"SLURM-6: left: {each}; gc said: {facts.gc_text}" for each in facts.left]


def _told(job: Job, ended_at: float) -> str:
    """Describe a job, with its times in seconds before the end of its client."""
    times = [f"{word} {ended_at - at:.0f}" for word, at in (("started", job.started), ("ended", job.ended)) if at]
    return f"{job.id} of {job.nodes} ({', '.join([job.state, *times])})"


def _client(client: Ended) -> list[str]:
    found = ends.judged(client)
    asked = sum(job.nodes for job in client.jobs)
    lost = sum(job.nodes for job in client.jobs if job.state in TAKEN)  # a substitute's job may be one of them as well
    surplus = max(client.surplus, lost)
    if asked > client.nodes + surplus:
        jobs = ", ".join(_told(job, client.ended_at) for job in client.jobs)
        found.append(f"SLURM-2: jobs {jobs}, where {client.nodes} nodes are wanted, and {surplus} more")
    took_s = client.left_in_s
    if client.leaving_s is not None and took_s is not None and took_s > client.leaving_s:
        found.append(f"SLURM-3: it left in {took_s:.1f} s")
    rule, more_s = ("SLURM-4", client.lease_s + SHUTDOWN_S) if client.killed else ("SLURM-3", 0.0)
    for job in client.jobs if client.killed or client.leaving_s is not None else ():
        if client.completing and job.state == "COMPLETING":
            continue
        # A job in the queue that nobody ends starts first; then its lease begins.
        last = max(client.ended_at, (job.started or 0.0) if client.killed else 0.0) + more_s + CLOCK_S
        if job.ended is None or job.ended > last:
            when = "is left" if job.ended is None else f"ended {job.ended - client.ended_at:.0f} s after it"
            found.append(f"{rule}: job {job.id} {when}")
    return [f"{each} ({client.name})" for each in found]
