"""The rules about time limits set by the user, and about work that must end: SIM-34 to 36.

A job settles when it ends with a result or an error. A machine is undisturbed if no fault hit it recently.

SIM-34: a broadcast fails because a node is missing only when ``replace_timeout_s`` seconds have passed since the loss
    of the last node that its next generation (run on a fixed set of nodes) lacks, or when the pool requests no
    machines any more.
SIM-35: attempts of a settled job run for at most `SOON_S` seconds more on a machine that is reachable and undisturbed.
SIM-36: an attempt that exceeds its ``timeout_s`` is ended within `SOON_S` seconds on an undisturbed machine. A job that
    has not begun within its ``queue_timeout_s`` settles at that time, not earlier. A job that is not done within its
    ``deadline_s`` settles at that time, in whatever state it is, and the error reports this state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....actors.fleet_controller import ANEW_S
from ....actors.interfaces import AttemptId, Ending, GaveUp, OnLoss, Reason, Settled, Verdict

if TYPE_CHECKING:
    from ....actors.interfaces import Order
    from ..machines import Host, Sim
    from ..scenario import Job

SOON_S = 5.0
AGAIN_S = 31.0  # seconds until the next check: by then the effects of an earlier fault are over
LOOKS = 20
ROUNDING_S = 1e-6


class TimeLimitRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._submitted_at: dict[int, float] = {}
        self._sent: set[int] = set()  # jobs with at least one attempt that was sent to a node, begun or not

    def submitted(self, job: Job) -> None:
        self._submitted_at[job.id] = self._sim.loop.now
        if job.queue_timeout_s is not None:
            self._sim.loop.call_later(job.queue_timeout_s + SOON_S, self._should_have_begun, job)

        if job.deadline_s is not None:
            self._sim.loop.call_later(job.deadline_s + SOON_S, self._should_have_settled, job)

    def ordered(self, order: Order) -> None:
        self._sent.add(order.task.job)

    def began(self, host: Host, order: Order) -> None:
        timeout_s = self._sim.jobs[order.task.job].timeout_s
        if timeout_s is not None:
            self._sim.loop.call_later(timeout_s + SOON_S, self._should_have_timed_out, host, order.attempt)

    def settled(self, job: Job, endings: Sequence[Ending]) -> None:
        gave_up = [ending for ending in endings if isinstance(ending, GaveUp)]
        waited_s = self._sim.loop.now - self._submitted_at[job.id]
        due_s = float("inf") if job.queue_timeout_s is None else job.queue_timeout_s - ROUNDING_S
        if waited_s < due_s and any(each.reason is Reason.QUEUE_TIMEOUT for each in gave_up):
            story = f"job {job.id} is given up after {waited_s:g} s of its queue_timeout, {job.queue_timeout_s}"
            self._sim.broken("SIM-36", story)
        late = [each for each in gave_up if each.reason is Reason.DEADLINE]
        if late and (waited_s < (job.deadline_s or 0.0) - ROUNDING_S or not all(each.why for each in late)):
            story = f"job {job.id} ends after {waited_s:g} s of its deadline, {job.deadline_s}: {late[0].why!r}"
            self._sim.broken("SIM-36", story)
        if job.ranks and any(each.reason is Reason.NO_REPLACEMENT for each in gave_up):
            self._check_patience(job, gave_up)
        if job.id in self._sent and (gave_up or any(_was_ended(ending) for ending in endings)):
            self._sim.loop.call_later(SOON_S, self._should_have_ended, job, LOOKS)

    # --- checks when a time limit is over -------------------------------------------------------------------------

    def _check_patience(self, job: Job, gave_up: Sequence[GaveUp]) -> None:
        referee, world = self._sim.referee, self._sim.referee.worlds.latest(job.id)
        nodes = {node for each in gave_up for node, _ in each.losses}
        if world is not None and job.on_loss is OnLoss.RESTART and not job.once:
            nodes = {*world.nodes}
        lost = [at for node in nodes if (at := referee.nodes.seats[node].lost_at) is not None]
        since = max(lost, default=self._submitted_at[job.id])
        waited_s, patience_s = self._sim.loop.now - since, self._sim.scenario.replace_timeout_s
        if waited_s < patience_s - ROUNDING_S and referee.nodes.gave_up_at < since - 2 * ANEW_S:
            story = f"job {job.id} ends for want of a node {waited_s:g} s after the last loss, of {patience_s:g}"
            self._sim.broken("SIM-34", story)

    def _should_have_begun(self, job: Job) -> None:
        referee = self._sim.referee
        begun = job.id in self._sent if job.ranks else referee.jobs.has_begun(job.id)
        if not begun and job.id not in referee.jobs.settled and not referee.nodes.closing:
            self._sim.broken("SIM-36", f"job {job.id} has not begun, and waits beyond its {job.queue_timeout_s} s")

    def _should_have_settled(self, job: Job) -> None:
        referee = self._sim.referee
        if job.id not in referee.jobs.settled and not referee.nodes.closing:
            self._sim.broken("SIM-36", f"job {job.id} has not settled at its deadline, {job.deadline_s} s")

    def _should_have_timed_out(self, host: Host, attempt: AttemptId) -> None:
        referee = self._sim.referee
        if attempt in referee.jobs.running and host.healthy and not referee.nodes.was_disturbed(host):
            self._sim.broken("SIM-36", f"attempt {attempt} runs on, {SOON_S:g} s beyond its timeout")

    def _should_have_ended(self, job: Job, looks: int) -> None:
        referee = self._sim.referee
        running = referee.jobs.running_of[job.id]
        for attempt, host in running.items():
            if host.healthy and host.connected and not referee.nodes.was_disturbed(host):
                self._sim.broken("SIM-35", f"job {job.id} has settled, and attempt {attempt} runs on")
        if running and looks:
            self._sim.loop.call_later(AGAIN_S, self._should_have_ended, job, looks - 1)


def _was_ended(ending: Ending) -> bool:
    """Return whether the attempt was ended from outside: then other attempts of its job may still run."""
    return isinstance(ending, Settled) and ending.verdict not in {Verdict.RETURNED, Verdict.RAISED}
