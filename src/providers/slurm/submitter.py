"""Submission of one pool's jobs: `Submitter` calls sbatch, `Submission` decides what to do if a response is lost.

The journal records each job before sbatch is called. Each call has a token: the journal has it before the call, and the
comment of the created job has it. The call can take effect only once: it creates the job's folder, which is named by
the token, and stops if the folder exists.

SUBMIT-1: one token is submitted once. After a lost response, the queue is searched, and the call is never repeated.
SUBMIT-2: a call whose response was lost has created nothing only if squeue shows no job with the token, and squeue was
started after the call was surely over.
SUBMIT-3: a job with the token of a call is this call's job, however late the job appears.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..errors import HostAway, JournalError, ProviderError
from ..shared.login_host import COMMAND_S, Place
from ..shared.threads import in_thread, uninterrupted
from . import script
from .site import is_refusal
from .squeue import JobView, Label, label_of, owner

if TYPE_CHECKING:
    from ..base import LaunchRequest, Login
    from ..shared.journal import Intent, Journal
    from .site import Around, SlurmCommands


JOB = "slurm-job"  # the kind of these intents (records of planned calls) in the journal
# Seconds between two searches for a lost job, and the longest pause while Slurm does not respond.
LOOK_S, AWAY_S = 1.0, 10.0
WARN_AFTER = 2  # failed searches in a row before a warning
TOKEN_LETTERS = 16


class SlurmOptions(Protocol):
    """The options of `Slurm` that a launch reads."""

    @property
    def host(self) -> str | None: ...

    @property
    def partition(self) -> str | None: ...

    @property
    def gres(self) -> str | None: ...

    @property
    def setup(self) -> tuple[str, ...]: ...

    @property
    def together(self) -> bool: ...

    @property
    def reach(self) -> Literal["auto", "ssh", "srun"]: ...

    @property
    def python(self) -> str: ...

    @property
    def time_s(self) -> float | None: ...

    @property
    def where(self) -> str: ...

    @property
    def journal_place(self) -> dict[str, str]: ...

    def login(self) -> Login: ...

    def place(self) -> Place: ...

    def arguments(self) -> list[str]: ...


class Submitter:
    """Submits a pool's jobs. ``warn`` is called with each warning to display, which is a clause (no sentence)."""

    def __init__(
        self, provider: SlurmOptions, pool: str, slurm: SlurmCommands, journal: Journal, warn: Callable[[str], None]
    ) -> None:
        self._provider, self._pool, self._slurm, self._journal, self._warn = provider, pool, slurm, journal, warn
        self.submissions: list[Submission] = []
        self._around: Around | None = None
        self._looking_around = anyio.Lock()

    async def site(self) -> Around:
        """Return the facts of the login host. The first call queries them; later calls reuse them."""
        async with self._looking_around:
            if self._around is None:
                self._around = await self._slurm.look_around(self._provider.partition or "")
            return self._around

    async def submit(self, request: LaunchRequest, count: int, arguments: Sequence[str]) -> Submission:
        """Submit one job of ``count`` nodes. Return the submission with the job's id.

        A cancellation takes effect after the current call of sbatch. `look_for_lost` later finds the job that the call
        created.

        Raises:
            ProviderError: No job was created.
        """
        around = await self.site()
        token = uuid4().hex[:TOKEN_LETTERS]
        submission = Submission(token, f"{around.root}/{token}", count)
        intent = await self._intend(submission)
        self.submissions.append(submission)
        failed: ProviderError | None = None
        with anyio.CancelScope(shield=True):
            submission.submitting()
            try:
                files, words = self._job(submission, request, arguments, around)
                submission.answered(await self._slurm.submit(submission.folder, files, words))
            except ProviderError as error:
                if is_refusal(error):
                    submission.was_refused()
                    await self._happened(intent, [])
                    raise
                failed = error
                # After any other error than HostAway, no process of the sbatch call still runs.
                ended = not isinstance(error, HostAway)
                submission.lost(anyio.current_time() - (COMMAND_S if ended else 0.0))
            except BaseException:  # the call was cancelled
                # The call may have created a job, so closing the pool searches for the job.
                submission.lost(anyio.current_time())
                raise
            else:
                await self._happened(intent, [submission.job or ""])
        await self._look_until_known(submission)
        if submission.job is None and isinstance(failed, HostAway):
            raise HostAway(f"sbatch made no job ({failed})", retry_after_s=LOOK_S) from failed
        if submission.job is None:
            raise failed or ProviderError("sbatch made no job")
        if submission.lost_at is not None:
            await self._happened(intent, [submission.job])
        return submission

    def left(self, intents: Iterable[Intent]) -> None:
        """Add the submissions of a dead client, so that closing the pool also ends their jobs."""
        ago_s = time.time() - anyio.current_time()
        for each in intents:
            submission = Submission(each.token, each.facts.get("folder", ""), int(each.facts.get("count", "1")))
            submission.submitting()
            if each.ids is None:
                submission.lost(each.at - ago_s)
            elif each.ids:
                submission.answered(each.ids[0])
            else:
                submission.was_refused()
            self.submissions.append(submission)

    async def look_for_lost(self) -> None:
        """Search for the jobs of all calls whose response was lost, until the outcome of each call is known.

        Raises:
            HostAway: Slurm does not respond.
        """
        while lost := [each for each in self.submissions if each.open]:
            for each in lost:
                await self._look(each)

    def _job(
        self, submission: Submission, request: LaunchRequest, arguments: Sequence[str], around: Around
    ) -> tuple[Mapping[str, str], Sequence[str]]:
        """Return the files of a job's folder, and the arguments of sbatch."""
        from .step.programs import texts

        provider, folder = self._provider, submission.folder
        time_s = provider.time_s
        batch = script.Script(
            folder=folder,
            lease_s=request.lease_s,
            lifetime_s=request.max_lifetime_s,
            time_s=time_s,
            grace_s=around.grace_s,
            setup=provider.setup,
            python=provider.python,
        )
        label = Label(self._pool, owner(), submission.token)
        own = script.own_arguments(
            name=self._pool, count=submission.count, comment=str(label), folder=folder, time_s=time_s
        )
        keys = f"{request.client_key}\n"
        files = {**texts(), script.KEYS: keys, script.BATCH: batch.text()}
        return files, [*arguments, *own, f"{folder}/{script.BATCH}"]

    async def _look_until_known(self, submission: Submission) -> None:
        """Search for the job of a call whose response was lost. Repeat while Slurm does not respond, until the outcome
        is known.
        """
        failures = 0
        while submission.open:
            try:
                await self._look(submission)
            except HostAway as error:
                failures += 1
                if failures == WARN_AFTER:
                    self._warn(f"whether sbatch made a job is not known yet, and is asked again ({error})")
                await anyio.sleep(min(AWAY_S, LOOK_S * 2 ** min(failures, 8)))

    async def _look(self, submission: Submission) -> None:
        """Search once for the job of a call whose response was lost.

        Raises:
            HostAway: The outcome is still unknown.
        """
        await anyio.sleep(LOOK_S)
        around, sent_at = await self.site(), anyio.current_time()
        submission.looked(await self._slurm.jobs(around.user, self._pool), sent_at)

    async def _intend(self, submission: Submission) -> Intent:
        facts = {"folder": submission.folder, "count": str(submission.count)}
        place = self._provider.journal_place
        return await uninterrupted(partial(self._journal.intend, self._pool, JOB, submission.token, place, facts))

    async def _happened(self, intent: Intent, ids: Sequence[str]) -> None:
        try:
            await in_thread(self._journal.happened, intent, ids)
        except JournalError:
            # The journal need not have the outcome: it already has the call's token, and so has the job's comment.
            pass


# --- one call of sbatch -----------------------------------------------------------------------------------------------


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
