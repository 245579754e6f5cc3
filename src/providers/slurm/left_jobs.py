"""Decide which jobs of a dead client a fleet takes over. No I/O.

LEFT-1: a machine is taken over only if its job runs, the job still has the machine's node, and the journal shows that
the job is of this pool.
LEFT-2: every other living job of the pool is ended. Jobs of other pools are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..base import Machine
from ..resource_ownership import Claim, Thing
from .squeue import RUNS, JobView, label_of

if TYPE_CHECKING:
    from ..journal import Intent


@dataclass(frozen=True, slots=True)
class Left:
    """The jobs to take over, and the jobs to end.

    ``machines``: the machines that are taken over; ``surplus``: the number of living machines above ``most``;
    ``keeps``: the jobs of ``machines``; ``ends``: the other living jobs of the pool.
    """

    machines: tuple[Machine, ...]
    surplus: int
    keeps: tuple[JobView, ...]
    ends: tuple[JobView, ...]


def thing_of(view: JobView) -> Thing:
    """Return a job as a `Thing`, so that a claim can check to which pool it belongs."""
    label = label_of(view.comment)
    if label is None:
        return Thing(view.id)
    return Thing(view.id, pool=label.pool, owner=label.owner, launch=label.token)


def left(views: Iterable[JobView], claim: Claim, known: Sequence[Machine], most: int) -> Left:
    """Decide to take over the first ``most`` of the ``known`` machines that still exist. ``views``: the user's jobs, as
    squeue shows them.
    """
    ours = {view.id: view for view in views if not view.over and claim.has(thing_of(view))}
    there = [machine for machine in known if machine.address is not None and _runs(ours.get(job_of(machine)), machine)]
    machines = tuple(there[:most])
    kept = {job_of(machine) for machine in machines}
    return Left(
        machines,
        len(there) - len(machines),
        tuple(view for view in ours.values() if view.id in kept),
        tuple(view for view in ours.values() if view.id not in kept),
    )


def folder_of(view: JobView, intents: Iterable[Intent], root: str) -> str:
    """Return a job's folder: as the journal has it, else named by the token of the sbatch call that created the job."""
    label = label_of(view.comment)
    written = (each.facts.get("folder") for each in intents if view.id in (each.ids or ()))
    return next(filter(None, written), f"{root}/{view.id if label is None else label.token}")


def job_of(machine: Machine) -> str:
    return machine.facts.get("job", "")


def _runs(view: JobView | None, machine: Machine) -> bool:
    return view is not None and view.state in RUNS and machine.facts.get("node", "") in view.nodes
