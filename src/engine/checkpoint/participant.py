"""The role of a process in a run: its rank, its world (the ranks that save together) and the world's term.

The term is a number: a world with a higher number fences this world, so that it may not save any more.
"""

from __future__ import annotations

import os
import secrets
import warnings

from ...lazy_dataclass import dataclass
from ..api.errors import CheckpointError, CheckpointFenced, SpecError
from ..runtime.instance_info import instance_info
from .records import Damaged, Term, World, admission, term_key, term_numbers
from .store import Store, polls


@dataclass(frozen=True, slots=True)
class Participant:
    store: Store
    run: str
    rank: int
    term: Term
    within_s: float  # how long to wait for other ranks, in seconds

    def check(self) -> None:
        """Raise a CheckpointFenced if a world with a higher term has begun, which fences this one."""
        newest = max(term_numbers(self.store.names("terms")), default=0)
        if newest > self.term.number:
            try:
                term = Term.load(self.store.get(term_key(newest)))
            except Damaged:
                term = Term.unknown(newest)
            raise _fenced(self.run, self.store, term)

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(message, run=self.run, url=self.store.url)


def this_world() -> tuple[World, int]:
    info = instance_info()
    if info.pool:
        attempt = info.attempt if info.world_size == 1 else 0
        return World(info.pool, info.job, info.generation, attempt, info.world_size), info.rank
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # outside a pool, nothing tells two starts of the same ranks apart
        raise SpecError(
            f"checkpoint() outside a pool is for one process, and WORLD_SIZE is {os.environ['WORLD_SIZE']} here: "
            "run the function by pool.broadcast."
        )
    return World("", 0, 0, 0, 1, secrets.token_hex(8)), 0


def begin(store: Store, run: str, world: World, rank: int, within_s: float) -> Participant:
    """Return the participant for ``rank``, with the term of ``world``. Rank 0 creates the term; other ranks wait for
    it.

    Raises:
        CheckpointFenced: A newer run has taken over the checkpoints of ``run``.
        CheckpointError: Rank 0 did not create the term within ``within_s`` seconds.
    """
    known: dict[int, Term] = {}
    damaged: dict[int, str] = {}
    for _ in polls(store, within_s):
        for number in term_numbers(store.names("terms")) - known.keys():
            try:
                known[number] = Term.load(store.get(term_key(number)))
            except FileNotFoundError:  # the file of an old term that another rank has just deleted
                continue
            # a later poll reads the file again, unless this rank's new term makes it obsolete
            except Damaged as damage:
                damaged[number] = str(damage)
        unknown = [Term.unknown(number) for number in damaged.keys() - known.keys()]
        term = admission(world, rank, [*known.values(), *unknown])
        if term is None:
            continue
        if term.world != world:
            raise _fenced(run, store, term)
        if term.number in known or store.create(term_key(term.number), term.dump()):
            for each in unknown if rank == 0 else ():
                _warn(store, run, each.number, damaged[each.number])
            return Participant(store, run, rank, term, within_s)
    raise CheckpointError(
        f"Rank 0 did not open the checkpoints of {run!r} at {store.url} within {within_s:g} s, and rank {rank} waits "
        "for it: every rank of a broadcast must call checkpoint(...) with the same name and root, and then load() or "
        "save(). checkpoint(timeout=...) is how long they wait for each other.",
        run=run,
        url=store.url,
    )


def _warn(store: Store, run: str, number: int, damage: str) -> None:
    warnings.warn(
        f"{store.url}/{term_key(number)} is damaged ({damage}). It says who has saved checkpoints of {run!r} before; "
        "this process takes over from them, and the checkpoints are used as they are. The file may be removed.",
        RuntimeWarning,
        stacklevel=2,
    )


def _fenced(run: str, store: Store, by: Term) -> CheckpointFenced:
    who = f"generation {by.generation} of job {by.job} in pool {by.pool}" if by.pool else "another process"
    return CheckpointFenced(
        f"The checkpoints of {run!r} were taken over by {who}, which began later: this process saves nothing any more. "
        "Where both are meant to go on, give each a name of its own.",
        run=run,
        url=store.url,
    )
