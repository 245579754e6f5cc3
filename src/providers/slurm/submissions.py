"""Decide what to do with a call of sbatch until it is known which job the call created. No I/O, no clock.

Each call has a token: the journal has it before the call, and the comment of the created job has it. The call can take
effect only once: it creates the job's folder, which is named by the token, and stops if the folder exists.

SUBMIT-1: one token is submitted once. After a lost response, the queue is searched, and the call is never repeated.
SUBMIT-2: a call whose response was lost has created nothing only if squeue shows no job with the token, and squeue was
started after the call was surely over.
SUBMIT-3: a job with the token of a call is this call's job, however late the job appears.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ...lazy_dataclass import dataclass
from ..login_host import COMMAND_S
from .squeue import JobView, label_of

OVER_S = COMMAND_S + 15.0  # seconds without a response; after this time, no process of the call can still run

Step = Literal["submit", "look", "job", "nothing", "refused"]


@dataclass(slots=True)
class Submission:
    """One call of sbatch, which submits a job of ``count`` nodes."""

    token: str
    folder: str
    count: int
    job: str | None = None
    is_sent: bool = False
    refused: bool = False
    lost_at: float | None = None
    nothing: bool = False

    @property
    def next_step(self) -> Step:
        """Return the next step (submit, or look for the job in the queue), or, if there is none, the outcome of the
        call.
        """
        if self.job is not None:
            return "job"
        if self.refused:
            return "refused"
        if self.nothing:
            return "nothing"
        return "look" if self.is_sent else "submit"

    @property
    def open(self) -> bool:
        """Return whether it is still possible that the call creates a job."""
        return self.next_step in {"submit", "look"}

    def submitting(self) -> None:
        assert self.next_step == "submit", f"the submission {self.token} is under way, or has been answered"
        self.is_sent = True

    def answered(self, job: str) -> None:
        self.job = job

    def was_refused(self) -> None:
        """Record that sbatch has refused the call, so no job exists."""
        self.refused = True

    def lost(self, now: float) -> None:
        """Record that the call's response is lost."""
        self.lost_at = now

    def looked(self, views: Iterable[JobView], sent_at: float) -> None:
        """Process an output of squeue. ``sent_at``: time at which the output was requested."""
        for view in views:
            label = label_of(view.comment)
            if label is not None and label.token == self.token:
                self.job = view.id
                return
        if self.next_step == "look" and self.lost_at is not None and sent_at - self.lost_at >= OVER_S:
            self.nothing = True
