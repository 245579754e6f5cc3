"""End a pool's jobs, or release some of their nodes, and wait until Slurm has done so. `jobs` and `job_ends` decide
when a job has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

import anyio

from ..errors import ProviderError
from ..shared.side_by_side import side_by_side
from .jobs import SILENT_S, Job, JobBook, JobEnds
from .squeue import JobView

if TYPE_CHECKING:
    from .site import SlurmCommands
    from .submitter import Submitter

POLL_S, MOST_POLL_S = 1.0, 5.0
END_POLL_S = 0.1  # seconds between polls while a caller waits for the end
# A job ends within this time (seconds), unless the site's epilog takes longer: slurmd (Slurm's daemon on a node) checks
# after 0.6 s and after 1.3 s whether the job's processes are gone.
LATE_S = 1.3
CONFIRM_S = 120.0  # seconds to wait for the confirmed end of a job, which takes Slurm's KillWait and the site's epilog
KILL_S = 5.0  # seconds from SIGTERM to SIGKILL of a step, at least: Slurm waits this long even if KillWait is shorter


class Endings:
    """Ends the jobs of one pool. ``poll`` calls squeue and updates the job book (all known jobs of the pool)."""

    def __init__(
        self, pool: str, slurm: SlurmCommands, submitter: Submitter, book: JobBook, poll: Callable[[], Awaitable[None]]
    ) -> None:
        self._pool, self._slurm, self._submitter, self._book, self._poll = pool, slurm, submitter, book, poll
        self._ended: set[str] = set()  # jobs whose end is confirmed

    async def shrink(self, job: Job) -> None:
        """Release the nodes that a job's machines do not need. The node of the job's batch shell stays in the job,
        unused.

        Raises:
            ProviderError: Slurm does not respond, or steps still run after `CONFIRM_S`.
        """
        job.shrinking = True
        try:
            if not job.running:
                await self._slurm.want_nodes(job.folder, len(job.machines))
            await self._poll()
            # While the job waits in the queue, it has no nodes yet, so none is unused. Surplus nodes are released after
            # the job's start.
            unused = job.unused_nodes
            began = anyio.current_time()
            job.give_back(unused, began)
        finally:
            job.shrinking = False
        if not unused:
            return
        await self._slurm.end_steps(job.folder, unused)
        free: set[str] = set()
        while True:
            steps = await self._steps(job)
            # Do not release a node that does not respond: Slurm would start other jobs on it.
            if ended := {*unused} - steps - free:
                free |= ended
                await self._keep(job, free)
            if not (left := steps & {*unused} & {*job.nodes}):
                break
            lasts_s = anyio.current_time() - began
            if lasts_s > CONFIRM_S:
                raise ProviderError(f"the steps on {', '.join(sorted(left))} have not ended", retry_after_s=5.0)
            await anyio.sleep(_pause_s(lasts_s))
            if lasts_s >= SILENT_S:
                await self._poll()  # Slurm removes a node without power from the job after some minutes
        job.released |= dict.fromkeys(free, inf)

    async def _keep(self, job: Job, free: set[str]) -> None:
        """Release nodes whose steps have ended, and keep the others."""
        keeps = [node for node in job.nodes if node not in free or node == job.batch_node]
        if len(keeps) < len(job.nodes):
            await self._slurm.keep_nodes(job.id, keeps)

    async def _steps(self, job: Job) -> set[str]:
        """Return the nodes whose steps have not reported their end. A step that reported an error counts as ended."""
        files = await self._slurm.node_files([job.folder])
        return {node for node, facts in files.items() if "host_key" in facts}

    async def end_whole(self, jobs: Sequence[Job]) -> None:
        """End jobs that have no machine left: all of them were ended or lost. See `end`."""
        for job in jobs:
            job.give_back(job.nodes, anyio.current_time())
        await self.end({job.id: job.folder for job in jobs})

    async def end(self, jobs: Mapping[str, str], *, waited_for: bool = False) -> None:
        """End jobs, and wait for their end.

        Args:
            jobs: Job id -> folder of the job.
            waited_for: True: a caller waits for the end, so poll more often.

        Raises:
            ProviderError: Slurm does not respond, or has not ended the jobs within `CONFIRM_S`.
        """
        around = await self._submitter.site()
        before = {job.id for job in self._of_book(jobs) if job.ending_since is not None}
        await self._slurm.end_jobs(jobs)
        began, forced, ends = anyio.current_time(), set[str](), JobEnds(jobs)
        for job in self._of_book(jobs):
            job.give_back(job.nodes, began + _killed_s(around.grace_s, ending=job.id in before))
        while True:
            lasts_s = anyio.current_time() - began
            quiet, left = await self._look(jobs, ends, set(jobs) if waited_for and lasts_s >= LATE_S else before)
            if not left:
                break
            if lasts_s > CONFIRM_S:
                raise ProviderError(f"Slurm has not ended the jobs {', '.join(left)}", retry_after_s=5.0)
            # scancel also ends the batch shell of a quiet job (no step runs on any responding node): that shell would
            # wait for the step of a node that does not respond.
            due = [each for each in left if each not in forced and (lasts_s > SILENT_S or each in quiet)]
            if due:
                await self._slurm.cancel(due)
                forced.update(due)
            hurries = waited_for and (lasts_s < SILENT_S or due)
            await anyio.sleep(END_POLL_S if hurries else _pause_s(lasts_s))
        self._ended.update(jobs)
        for job in self._of_book(jobs):
            job.over = job.confirmed = True

    async def end_known(self) -> None:
        """End all jobs that sbatch is known to have created."""
        known = self._book.jobs  # includes jobs that were missing in squeue's output: they may still exist
        over = self._ended.union(job for job, each in known.items() if each.confirmed)
        submissions = self._submitter.submissions
        left = {each.job: each.folder for each in submissions if each.job and each.job not in over}
        if left:
            await self.end(left, waited_for=True)

    async def _look(self, jobs: Mapping[str, str], ends: JobEnds, by_word: set[str]) -> tuple[set[str], list[str]]:
        """Query the steps and the queue. Return the jobs without a running step, and the jobs that have not ended.

        The two queries run concurrently, because each is slow on a busy login host.
        """
        around, sent_at = await self._submitter.site(), anyio.current_time()
        views: list[JobView] = []
        quiet: set[str] = set()

        async def ask_squeue() -> None:
            views.extend(await self._slurm.jobs(around.user, self._pool))

        async def ask_steps() -> None:
            quiet.update(await self._quiet(jobs, by_word))

        await side_by_side([ask_squeue, ask_steps])
        return quiet, ends.answer([view for view in views if view.id in jobs], sent_at, quiet)

    async def _quiet(self, jobs: Mapping[str, str], by_word: set[str]) -> set[str]:
        """Return the quiet jobs: those of which no step runs on any responding node.

        A job is quiet if it has lost nodes and its other steps have ended. A job in ``by_word`` is also quiet if all
        its steps have reported their end. For all other jobs, Slurm itself soon reports the end.
        """
        quiet: set[str] = set()
        for job in self._of_book(jobs):
            now = anyio.current_time()
            word = job.id in by_word
            if word or job.may_be_quiet(now):
                steps = await self._steps(job)
                if job.steps_seen(steps, now) or (word and job.has_ended(steps)):
                    quiet.add(job.id)
        return quiet

    def _of_book(self, jobs: Mapping[str, str]) -> list[Job]:
        return [self._book.jobs[each] for each in jobs if each in self._book.jobs]


def _killed_s(grace_s: float, *, ending: bool) -> float:
    """Return the delay (seconds) before `SILENT_S` is counted for a job's steps. A step that has not ended when both
    are over counts as silent: its node does not respond.

    Slurm kills the steps before they count as silent. If Slurm was already ``ending`` the job, it may have killed some
    steps before they could report; all other steps get the request at once, and end within `LATE_S`.
    """
    return LATE_S - SILENT_S if ending else SILENT_S + max(grace_s, KILL_S)


def _pause_s(lasts_s: float) -> float:
    """Return the pause (seconds) before the next poll when no caller waits. The pauses leave a busy login host time to
    start a replacement job.
    """
    return min(max(lasts_s / 2, 2 * END_POLL_S), MOST_POLL_S)
