"""Query Slurm's accounting once, after the end of a pool's jobs, for the processors and memory that the nodes used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import anyio

from ..base import MachineUsage, UsageUnknown
from ..errors import ProviderError
from .accounting import JobUse, read

if TYPE_CHECKING:
    from ..login_host import Ended
    from .jobs import Job
    from .site import Slurm

# Seconds that closing a pool may take until the figures have arrived, counted from the start of closing: figures may
# come late.
LEAVE_S = 1.0
# The query gets at least this time (seconds), even if closing the pool has already taken longer than `LEAVE_S`.
LEAST_S = 0.4
AGAIN_S = 0.1
DISABLED = "accounting storage is disabled"


async def usage(slurm: Slurm, jobs: Iterable[Job], *, within_s: float) -> Sequence[MachineUsage | UsageUnknown]:
    """Return what the machines of ended jobs have used, and which machines have no figures.

    The query takes at most ``within_s`` seconds, and raises no error that Slurm may have caused.
    """
    ran = {job.id: job for job in jobs if job.node_of}
    if not ran:
        return []
    uses: dict[str, JobUse] = {}
    failure = ""
    try:
        with anyio.move_on_after(within_s):
            while late := [job for job in ran if job not in uses]:
                ended = await slurm.accounting(late)
                if failure := _failure(ended, slurm.where):
                    break
                uses |= {job: use for job, use in read(ended.stdout).items() if job in ran and use.complete}
                if len(uses) < len(ran):
                    await anyio.sleep(AGAIN_S)
    except ProviderError as error:
        failure = str(error)
    return [*_used(ran, uses), *_unknown(ran, uses, failure)]


def _used(ran: dict[str, Job], uses: dict[str, JobUse]) -> Iterator[MachineUsage]:
    for job, use in uses.items():
        for machine, node in ran[job].node_of.items():
            if (of := use.nodes.get(node)) is not None:
                yield MachineUsage(machine, of.seconds, of.cpus, of.cpu_s, of.memory_bytes, of.memory_total_bytes)


def _unknown(ran: dict[str, Job], uses: dict[str, JobUse], failure: str) -> Iterator[UsageUnknown]:
    late = [job for job in ran if job not in uses]
    if late and failure:
        yield UsageUnknown(failure)
    elif late:
        yield UsageUnknown(f"the accounting comes late; ask for it by `sacct --jobs {','.join(late)}`")
    if shrunk := [job for job, use in uses.items() if use.shrunk]:
        yield UsageUnknown(f"Slurm has no figures of steps that ran when their job was shrunk ({_jobs(shrunk)})")
    if lost := [job for job, use in uses.items() if not use.shrunk and {*ran[job].node_of.values()} - {*use.nodes}]:
        yield UsageUnknown(f"the accounting does not have all nodes of {_jobs(lost)}")


def _failure(ended: Ended, where: str) -> str:
    """Return why sacct has failed; empty: it has not failed."""
    if ended.status == 0:
        return ""
    message = " ".join(ended.stderr.split()) or "nothing"
    if DISABLED in message:
        return f"the cluster keeps no accounting (sacct {where}: {message})"
    return f"sacct {where} failed, and said: {message[:300]}"


def _jobs(jobs: Sequence[str]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
