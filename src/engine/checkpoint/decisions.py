"""Decide what may be done with a run, from the files in its storage. No I/O, no clock.

Invariants:

CKPT-1  A complete checkpoint has the data of every rank: every digest that a rank needs has a known place.
CKPT-2  The newest complete checkpoint is never deleted, whoever else deletes at the same time.
CKPT-3  A checkpoint that a fenced world completes never comes before one that a later world has completed.
CKPT-4  All ranks of a world resume from the same checkpoint, and each of them could read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .records import ByteRange, CheckpointId, Entry, Part, Term, World, complete, term_numbers

TERMS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Fenced:
    """The world may not save any more: ``by``, a later term, has taken the run over."""

    by: Term


def admission(world: World, rank: int, terms: Sequence[Term]) -> Term | Fenced | None:
    """Decide which term a rank of ``world`` has, from the ``terms`` that exist.

    It is one of those, or on rank 0 the next one, which it must create; None while rank 0 has not. Within one broadcast
    (or task) the later generation (or attempt) wins, whichever comes first. Between different ones the last comer wins,
    as nothing else orders them.
    """
    newest_first = sorted(terms, key=lambda term: term.number, reverse=True)
    for term in newest_first:
        if term.world == world:
            return term if term is newest_first[0] else Fenced(newest_first[0])
        later = (term.generation, term.attempt) > (world.generation, world.attempt)
        if world.pool and (term.pool, term.job) == (world.pool, world.job) and later:
            return Fenced(term)
    if rank:
        return None
    return Term.begin(newest_first[0].number + 1 if newest_first else 1, world)


def shares(entries: Sequence[Entry], ranks: int) -> list[int]:
    """Choose the rank that writes each entry, -1 for all, so that ranks write about equally many bytes.

    Every rank writes its own pickle. The ranks' states need not be the same: what nobody wrote is found by its digest
    and written in a second part.
    """
    writers = [-1] * len(entries)
    loads = [0] * ranks
    for index, entry in sorted(enumerate(entries), key=lambda each: -each[1].size):
        if entry.kind != "pickle":
            writers[index] = rank = loads.index(min(loads))
            loads[rank] += entry.size
    return writers


def first_parts(parts: Iterable[Part]) -> dict[int, Part]:
    """The parts that say what ranks have, by rank."""
    return {part.rank: part for part in parts if part.number == 0}


def places(parts: Iterable[Part]) -> dict[str, ByteRange]:
    """The contents that are written, by digest."""
    return {name: place for part in parts for name, place in part.where.items()}


def lacking(parts: Sequence[Part], ranks: int) -> str | None:
    """The reason why the checkpoint is not complete yet; None where it is (CKPT-1)."""
    first = first_parts(parts)
    if missing := [rank for rank in range(ranks) if rank not in first]:
        return f"rank {listed(missing)} did not save it"
    written = places(parts)
    if partial := [rank for rank, part in sorted(first.items()) if part.needs() - written.keys()]:
        return f"rank {listed(partial)} did not save all that it has"
    return None


def listed(ranks: Sequence[int]) -> str:
    return f"{', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"


def to_delete(
    keys: Sequence[str], folders: Sequence[str] = (), *, term: int, keep: int
) -> tuple[list[CheckpointId], list[CheckpointId]]:
    """(complete checkpoints, remains of incomplete ones) that the world of ``term`` may delete.

    Only the newest world deletes anything. It keeps the newest ``keep`` complete checkpoints (CKPT-2), and everything
    of its own after the last complete one, because that may still become complete. ``folders``: folders of the run,
    also those without a key in ``keys`` because a save left them empty.
    """
    if any(number > term for number in term_numbers(keys)):
        return [], []
    done = complete(keys)
    of_this_world = [at for at in done if at.term == term]
    if not of_this_world:
        return [], []
    others = {at for key in (*keys, *folders) if (at := CheckpointId.of(key)) is not None} - set(done)
    return done[max(keep, 1) :], sorted(at for at in others if at < of_this_world[0])


def old_terms(keys: Iterable[str], term: int) -> list[int]:
    """The terms whose files nobody needs any more."""
    return sorted(number for number in term_numbers(keys) if number <= term - TERMS_KEPT)


def verdict(votes: Mapping[int, str], ranks: int) -> str | None:
    """Count the ranks' votes, each "" or what is wrong with a checkpoint.

    Return what is wrong, "" where every rank has read it (CKPT-4), or None while votes are missing.
    """
    if against := [f"rank {rank}: {reason}" for rank, reason in sorted(votes.items()) if reason]:
        return "; ".join(against)
    return "" if len(votes) == ranks else None
