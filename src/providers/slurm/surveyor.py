"""The surveyor of Slurm clusters. It lists the jobs of all pools for `outrider ps` and `outrider gc`, and ends them for
`gc`.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from ..errors import NotGone
from ..shared.journal import Intent, Journal
from ..shared.login_host import Place as LoginPlace
from ..shared.login_host import opened_commands
from ..shared.login_options import no_way, options_of
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Claim, Others, Thing
from ..shared.threads import in_thread
from ..survey import FoundMachine, PlaceAnswer
from .endings import KILL_S
from .jobs import SILENT_S, JobEnds, thing_of
from .provider import Slurm
from .site import Around, SlurmCommands
from .squeue import QUEUED, JobView, label_of, reason_of
from .submitter import OVER_S

AGAIN_S, FORCE_AFTER_S, CONFIRM_S = 0.5, 3.0, 120.0
MOST_NODES = 4  # a text names at most this many nodes


class SlurmSurveyor:
    """Implements `survey.Surveyor` for Slurm. A place (a location of machines, as texts in the journal) has the
    login host as "slurm", and the files for logging in there.
    """

    def has(self, place: Place) -> bool:
        return "slurm" in place

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find all jobs of this user that have a pool's comment, and the jobs that ``known`` intents (from the journal)
        name.
        """
        ids = {each for intent in known for each in intent.ids or ()}
        async with _commands(place) as (slurm, around):
            views = await slurm.jobs(around.user, None)
        machines = [_machine(view) for view in views if not view.over and (label_of(view.comment) or view.id in ids)]
        return PlaceAnswer("slurm", place, tuple(machines))

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> str:  # noqa: ARG002
        """End all jobs of the pool, wait for the confirmed end, and mark the pool as settled (nothing is left) in the
        journal.

        Return a text that names the jobs that Slurm still shows as ending. A call of sbatch that was in progress when
        its client died may create a job until `OVER_S` later, so this method waits until then.
        """
        record = await in_thread(journal.record, pool)
        claim = Claim(pool) if record is None else record.claim(place)
        intents = [] if record is None else [each for each in record.intents if each.place == place]
        open_until = max((each.at + OVER_S for each in intents if each.ids is None), default=0.0)
        known = [job for each in intents for job in each.ids or ()]
        async with _commands(place) as (slurm, around):
            while True:
                shown = await _ended(slurm, around, claim.has, known)
                if time.time() >= open_until:
                    break
                await anyio.sleep(min(AGAIN_S * 4, max(0.1, open_until - time.time())))
            await slurm.remove([each.facts["folder"] for each in intents if each.facts.get("folder")])
        await in_thread(journal.settled, pool, place)
        return shown

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> str:
        """End the jobs whose comment names the pool but that are not this pool's by its journal, and wait for the
        confirmed end.

        Return a text that names the jobs that Slurm still shows as ending.
        """
        record = await in_thread(journal.record, pool)
        claim = Claim(pool) if record is None else record.claim(place)
        async with _commands(place) as (slurm, around):
            return await _ended(slurm, around, Others(claim).has)

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return only ``place``, which names one login host: a login host does not know other clusters."""
        return [place]


async def _ended(slurm: SlurmCommands, around: Around, ours: Callable[[Thing], bool], known: Iterable[str] = ()) -> str:
    """End jobs, and return when Slurm has killed them on every responding node (ENDS-2).

    Return a text that names the jobs that Slurm still shows as ending; empty: no job.

    Args:
        slurm: Slurm's commands on the login host.
        around: The facts of the login host.
        ours: Selects the jobs to end.
        known: Job ids from the journal.

    Raises:
        NotGone: Slurm has not ended the jobs.
    """
    began, ends = anyio.current_time(), JobEnds(known)
    killed_at: dict[str, float] = {}  # job -> time at which Slurm has surely killed it on every responding node
    signalled: set[str] = set()
    while True:
        sent_at = anyio.current_time()
        views = [view for view in await slurm.jobs(around.user, None) if ours(thing_of(view))]
        living = [view for view in views if not view.over]
        killed = {job for job, at in killed_at.items() if sent_at >= at}
        if not (left := ends.answer(views, sent_at, killed)):
            return _shown_still(living)
        lasts_s = anyio.current_time() - began
        if lasts_s > CONFIRM_S:
            named = [f"job {job}{_on(living, job)}" for job in left]
            raise NotGone("Slurm has not ended all jobs of the pool", machines=named)
        if news := {
            view.id: _folder(around, view) for view in living if view.id not in signalled and label_of(view.comment)
        }:
            await slurm.end_jobs(news)
            signalled.update(news)
        if due := [view.id for view in living if view.id not in killed_at and lasts_s > FORCE_AFTER_S]:
            await slurm.cancel(due)
            within_s = max(around.grace_s, KILL_S) + SILENT_S
            killed_at |= dict.fromkeys(due, anyio.current_time() + within_s)
        await anyio.sleep(AGAIN_S)


def _shown_still(living: Sequence[JobView]) -> str:
    if not living:
        return ""
    jobs = ", ".join(f"job {each.id}{_on(living, each.id)}" for each in living)
    return f"Slurm shows {jobs} as ending until it has cleaned up there, or counts a node without power as down"


def _on(views: Iterable[JobView], job: str) -> str:
    """Return a clause with the names of a job's nodes. While a job ends, Slurm lists only the nodes that are not
    cleaned up.
    """
    nodes = next((view.nodes for view in views if view.id == job), ())
    more = f" and {len(nodes) - MOST_NODES} others" if len(nodes) > MOST_NODES else ""
    return f" on {', '.join(nodes[:MOST_NODES])}{more}" if nodes else ""


def _folder(around: Around, view: JobView) -> str:
    label = label_of(view.comment)
    assert label is not None
    return f"{around.root}/{label.token}"


def _machine(view: JobView) -> FoundMachine:
    thing = thing_of(view)
    state = view.state.lower()
    if view.state in QUEUED:
        state = f"pending: {reason_of(view.reason).word}"
    nodes = len(view.nodes)
    kind = f"job of {nodes} node{'' if nodes == 1 else 's'}" if nodes else "job"
    return FoundMachine(
        view.id,
        kind,
        "",
        "",
        state,
        view.starts_at if view.starts_at is not None and view.nodes else time.time(),
        pool=thing.pool,
        owner=thing.owner,
        launch=thing.launch,
    )


@asynccontextmanager
async def _commands(place: Place) -> AsyncIterator[tuple[SlurmCommands, Around]]:
    """Connect to the login host that the journal has for the pool. ``place``: the journal's texts."""
    host = place["slurm"]
    async with opened_commands([] if host == os.uname().nodename else [_login_host(place, host)]) as (commands,):
        slurm = SlurmCommands(commands)
        yield slurm, await slurm.look_around()


def _login_host(place: Mapping[str, str], host: str) -> LoginPlace:
    """Return the login host, with the keys and files to log in there. ``place``: the journal's texts with these.

    Raises:
        BadRequest: One of the login's files is gone, or the text is not a host.
    """
    try:
        return Slurm(host, **options_of(place)).place()
    except ValueError as error:
        raise no_way(host, error, "look with `squeue` on the login host, and end its jobs with `scancel`") from error
