"""Decide when jobs that are being ended are over, from one output of squeue to the next. No I/O, no clock.

ENDS-1: a job is over when an output of squeue shows it as ended. A job is also over when `MISSING` outputs in a row,
`APART_S` apart, do not show it: one output is not enough, because a Slurm controller that has just started, or a
standby controller that takes over, answers before it knows all jobs.
ENDS-2: a quiet job (no step runs on any responding node) is over when an output of squeue shows that Slurm is ending
the job. A job is known to be quiet by its steps (JOBS-6, JOBS-8), or because Slurm has had enough time to kill its
steps. Slurm shows such a job until Slurm counts the other nodes as down, or has cleaned up, which takes minutes at some
sites.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf

from .jobs import MISSING
from .squeue import ENDS, JobView

APART_S = 0.5


class JobEnds:
    """The jobs that are being ended. ``watched``: jobs that are known to exist before the first output of squeue."""

    def __init__(self, watched: Iterable[str] = ()) -> None:
        self._lacked = dict.fromkeys(watched, 0)
        self._lacked_at: dict[str, float] = {}

    @property
    def left(self) -> list[str]:
        """The jobs that are not over."""
        return list(self._lacked)

    def answer(self, views: Iterable[JobView], sent_at: float, quiet: Container[str] = ()) -> list[str]:
        """Process an output of squeue. Return the jobs that are not over.

        Args:
            views: The jobs in the output that this program is ending.
            sent_at: Time at which the output was requested.
            quiet: Jobs of which no step runs on any responding node.
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
