"""Decide how to handle a call of sbatch until it is known which job it created. No I/O, no clock.

A job has its call's token in its comment, and the journal has the token before the call. The call can take effect only
once: it creates the job's folder, named by the token, and stops if the folder exists.

SUBMIT-1: one token is submitted once; after a lost answer the queue is queried, and the call is never repeated.
SUBMIT-2: a lost call has created nothing only if an answer says so that was requested after the call was surely over.
SUBMIT-3: a job with the token is the call's, whenever it shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ...lazy_dataclass import dataclass
from ..login_host import COMMAND_S
from .squeue import JobView, label_of

OVER_S = COMMAND_S + 15.0  # seconds without a response after which no process of the call can still run

Step = Literal["submit", "look", "job", "nothing", "refused"]


@dataclass(slots=True)
class Submission:
    """One call of sbatch, for ``count`` nodes."""

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
        """Return the next step (submit, or look for the job in the queue), or the outcome."""
        if self.job is not None:
            return "job"
        if self.refused:
            return "refused"
        if self.nothing:
            return "nothing"
        return "look" if self.is_sent else "submit"

    @property
    def open(self) -> bool:
        """Return whether the call may still turn out to have created a job."""
        return self.next_step in {"submit", "look"}

    def submitting(self) -> None:
        assert self.next_step == "submit", f"the submission {self.token} is under way, or has been answered"
        self.is_sent = True

    def answered(self, job: str) -> None:
        self.job = job

    def was_refused(self) -> None:
        """Record that sbatch has refused: there is no job."""
        self.refused = True

    def lost(self, now: float) -> None:
        """Record that the response is lost."""
        self.lost_at = now

    def looked(self, views: Iterable[JobView], sent_at: float) -> None:
        """Process an answer of squeue. ``sent_at``: time of the request."""
        for view in views:
            label = label_of(view.comment)
            if label is not None and label.token == self.token:
                self.job = view.id
                return
        if self.next_step == "look" and self.lost_at is not None and sent_at - self.lost_at >= OVER_S:
            self.nothing = True
