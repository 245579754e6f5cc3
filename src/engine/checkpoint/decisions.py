"""What may be done with a run, from what its storage holds: no storage, no clock in here.

Invariants:

CKPT-1  What is complete has the data of every rank: of each digest that any rank needs, a place is known.
CKPT-2  The newest complete checkpoint is never deleted, whoever else deletes at the same time.
CKPT-3  What a fenced world still completes never comes before what a later one has completed.
CKPT-4  All ranks of a world resume from the same checkpoint, one that each of them could read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .records import At, Entry, Part, Term, World, complete, term_number

TERMS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Join:
    """The world's turn has begun, as this term."""

    term: Term


@dataclass(frozen=True, slots=True)
class Begin:
    """Rank 0 begins the turn, with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Rank 0 has not begun it yet."""


@dataclass(frozen=True, slots=True)
class Stale:
    """This world is fenced: ``by`` came after it."""

    by: Term


def entry(world: World, rank: int, terms: Sequence[Term]) -> Join | Begin | Wait | Stale:
    """How a rank gets a term, from those that there are.

    Of one broadcast (or task) the later generation (or attempt) wins, whoever comes first; between others, who comes
    last: there is no other order between them.
    """
    newest = max(terms, key=lambda term: term.number, default=None)
    for term in sorted(terms, key=lambda term: term.number, reverse=True):
        if term.world == world:
            return Join(term) if term is newest else Stale(newest or term)
        later = (term.generation, term.attempt) > (world.generation, world.attempt)
        if world.pool and (term.pool, term.job) == (world.pool, world.job) and later:
            return Stale(term)
    if rank:
        return Wait()
    return Begin(newest.number + 1 if newest is not None else 1)


def shares(entries: Sequence[Entry], ranks: int) -> list[int]:
    """For each entry, which rank writes it, if all ranks had the same: each about as many bytes.

    The pickle is everybody's own. Nothing relies on the ranks being alike: what nobody wrote is found by its digest.
    """
    writers = [-1] * len(entries)
    loads = [0] * ranks
    for index in sorted(range(len(entries)), key=lambda index: -entries[index].size):
        if entries[index].kind != "pickle":
            rank = loads.index(min(loads))
            writers[index] = rank
            loads[rank] += entries[index].size
    return writers


def first_parts(parts: Iterable[Part]) -> dict[int, Part]:
    return {part.rank: part for part in parts if part.number == 0}


def places(parts: Iterable[Part]) -> set[str]:
    """The digests of what is written."""
    return {name for part in parts for name in part.where}


def lacking(parts: Sequence[Part], ranks: int) -> str | None:
    """Why the checkpoint is not complete yet; None: it is (CKPT-1)."""
    first = first_parts(parts)
    if missing := [rank for rank in range(ranks) if rank not in first]:
        return f"nothing of rank {', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}"
    written = places(parts)
    if partial := [rank for rank, part in sorted(first.items()) if part.needs() - written]:
        return f"not all of rank {', '.join(map(str, partial[:8]))}"
    return None


def to_delete(keys: Sequence[str], folders: Sequence[str] = (), *, term: int, keep: int) -> tuple[list[At], list[At]]:
    """(complete checkpoints, remains of incomplete ones) that the world of ``term`` may delete.

    Only the newest world deletes anything. It leaves the newest ``keep`` complete ones (CKPT-2), and what may still
    become complete: anything of its own after the last complete one. ``folders``: those of which ``keys`` may show
    nothing, because a save left them empty.
    """
    if any((number := term_number(key)) is not None and number > term for key in keys):
        return [], []
    done = complete(keys)
    of_this_world = [at for at in done if at.term == term]
    if not of_this_world:
        return [], []
    others = {at for key in (*keys, *folders) if (at := At.of(key)) is not None} - set(done)
    return done[max(keep, 1) :], sorted(at for at in others if at < of_this_world[0])


def old_terms(keys: Iterable[str], term: int) -> list[int]:
    """Terms whose files nobody needs any more."""
    numbers = {number for key in keys if (number := term_number(key)) is not None}
    return sorted(number for number in numbers if number <= term - TERMS_KEPT)


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask every rank to read this one; None: there is nothing (left)."""

    at: At | None


@dataclass(frozen=True, slots=True)
class Agreed:
    """Every rank has read it."""

    at: At


def verdict(at: At, votes: Mapping[int, str], ranks: int) -> Agreed | str | None:
    """Of the ranks' votes ("" or what is wrong): agreed, the reason against it, or None where some are missing."""
    against = [f"rank {rank}: {reason}" for rank, reason in sorted(votes.items()) if reason]
    if against:
        return "; ".join(against)
    return Agreed(at) if len(votes) == ranks else None
