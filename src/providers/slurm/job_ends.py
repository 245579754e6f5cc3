"""Decide when jobs that are being ended are over, from one answer of squeue to the next. No I/O, no clock.

ENDS-1: a job is over when an answer shows it so, or when `MISSING` answers lack it, one after the other and `APART_S`
apart: a controller that has just started, or a standby that takes over, answers before it knows all jobs.
ENDS-2: a job of which nothing runs on any responding node is over when an answer shows that Slurm ends it. That nothing
runs is known from the job's steps (JOBS-6, JOBS-8), or because Slurm has had the time to kill the job there. Slurm
shows such a job until it counts the other nodes as down, or has cleaned up, which takes minutes at some sites.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf

from .jobs import MISSING
from .squeue import ENDS, JobView

APART_S = 0.5


class JobEnds:
    """The jobs that are being ended. ``watched``: those known to exist from the start."""

    def __init__(self, watched: Iterable[str] = ()) -> None:
        self._lacked = dict.fromkeys(watched, 0)
        self._lacked_at: dict[str, float] = {}

    @property
    def left(self) -> list[str]:
        """The jobs that are not over."""
        return list(self._lacked)

    def answer(self, views: Iterable[JobView], sent_at: float, quiet: Container[str] = ()) -> list[str]:
        """Process an output of squeue that was requested at ``sent_at``.

        ``views``: the jobs in the output that this program is ending.

        ``quiet``: jobs of which nothing runs any more. Return the jobs that are not over.
        """
        shown = {view.id: view for view in views}
        for job in [*self._lacked, *(each for each in shown if each not in self._lacked)]:
            if job in shown:
                view = shown[job]
                self._shown(job, over=view.over or (view.state in ENDS and job in quiet))
            elif sent_at - self._lacked_at.get(job, -inf) >= APART_S:
                self._lacked[job] += 1
                self._lacked_at[job] = sent_at
                if self._lacked[job] >= MISSING:
                    del self._lacked[job]
        return self.left

    def _shown(self, job: str, *, over: bool) -> None:
        self._lacked_at.pop(job, None)
        if over:
            self._lacked.pop(job, None)
        else:
            self._lacked[job] = 0
