"""The records in a run's storage, as readable JSON, and decisions that need only these records. No I/O, no clock.

A world is a group of processes that save together. Its term is its number: a new world fences those with lower numbers.

The files of a run::

    terms/00000007.json                   world 7 has begun: worlds with lower numbers may complete no checkpoint
    terms/00000007/load-0000/...          messages by which its ranks agree on the checkpoint to resume from
    terms/00000007/calls/...              steps that rank 0 has announced, if saves are by time
    step-000000001200.term-00000007/      one checkpoint (with ``.again-1`` if world 7 saved that step once before):
        rank-00003-5f2a91c0.distcp        data that rank 3 wrote
        rank-00003.0.json                 the entries of rank 3, and the places of their data: a `Part`
        rank-00003.1.json                 the places of data that rank 3 wrote later, because no other rank had done so
        .metadata                         the index of tensors for torch.distributed.checkpoint
        manifest.json                     the list of files; written last, it makes the checkpoint complete

Invariants:

CKPT-1  A complete checkpoint has the data of every rank: every digest that a rank needs has a known place.
CKPT-2  The newest complete checkpoint is never deleted, even if several processes delete at the same time.
CKPT-3  A checkpoint that a fenced world completes is always older than any that a later world completes.
CKPT-4  All ranks of a world resume from the same checkpoint, after each of them has read it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import NamedTuple, Self

from ...lazy_dataclass import dataclass

Piece = bytes | bytearray | memoryview  # a piece of a file's content

MANIFEST = "manifest.json"
FORMAT = 1
TERMS_KEPT = 8

_FOLDER = re.compile(r"step-(\d+)\.term-(\d+)(?:\.again-(\d+))?")
_TERM = re.compile(r"terms/(\d+)\.json")
_PART = re.compile(r"rank-\d+\.[01]\.json")


class Damaged(Exception):
    """The error for a file that is missing, or does not match its digest."""


class CheckpointId(NamedTuple):
    """The identity of one checkpoint. Of two identities, the greater is the newer: terms decide, then steps.

    ``term``: the number of the group of processes that saved the checkpoint; a later group has a higher number.
    """

    term: int
    step: int
    again: int = 0  # number of earlier saves of this step in the same world

    @property
    def folder(self) -> str:
        return f"step-{self.step:012}.term-{self.term:08}{f'.again-{self.again}' if self.again else ''}"

    @property
    def manifest(self) -> str:
        return f"{self.folder}/{MANIFEST}"

    def part(self, rank: int, number: int) -> str:
        return f"{self.folder}/rank-{rank:05}.{number}.json"

    @classmethod
    def of(cls, key: str) -> CheckpointId | None:
        """Return the checkpoint that the file ``key`` belongs to; None: the file belongs to no checkpoint."""
        match = _FOLDER.fullmatch(key.partition("/")[0])
        return None if match is None else cls(int(match[2]), int(match[1]), int(match[3] or 0))


def term_key(number: int) -> str:
    return f"terms/{number:08}.json"


def term_numbers(keys: Iterable[str]) -> set[int]:
    return {int(match[1]) for key in keys if (match := _TERM.fullmatch(key)) is not None}


def is_part(name: str) -> bool:
    return _PART.fullmatch(name) is not None


def digest(data: Piece) -> str:
    """Return the same digest as the command ``b2sum --length=256``."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


class Record:
    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload]  # subclasses are dataclasses

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Parse a record of this class from JSON. Raise `Damaged` if the data is not a valid record."""
        try:
            facts = json.loads(data)
            return cls(**{each.name: facts[each.name] for each in fields(cls)})  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"a {cls.__name__.lower()} cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class World(Record):
    """The processes that save together: one generation of a broadcast, or one attempt of a task."""

    pool: str
    job: int
    generation: int
    attempt: int  # 0 if the world has several ranks: a single restarted rank (a new attempt) then joins the same world
    size: int
    nonce: str = ""  # random; outside a pool, only this field differs between worlds


@dataclass(frozen=True, slots=True)
class Term(World):
    """The number of a world (processes that save together): worlds with lower numbers may not save, as in Raft."""

    number: int = field(kw_only=True)

    @classmethod
    def begin(cls, number: int, world: World) -> Term:
        return cls(**asdict(world), number=number)

    @classmethod
    def unknown(cls, number: int) -> Term:
        """Return a stand-in for a term (the number of a world, which saves together) whose file is damaged.

        It equals no real term. As with all terms, its world may not save once a higher number exists.
        """
        return cls("", 0, 0, 0, 0, "damaged", number=number)

    @property
    def world(self) -> World:
        return World(*(getattr(self, each.name) for each in fields(World)))


class Entry(NamedTuple):
    """One piece of a rank's state: its pickle (always the first entry), a tensor or a buffer.

    ``digest`` is the digest of the content. A tensor has its ``path`` in the state, its ``dtype`` and whole ``shape``,
    and the place of this rank's shard in the tensor (``offset``, ``extent``).
    """

    digest: str  # "": not computed yet
    kind: str  # "pickle", "tensor" or "buffer"
    size: int
    path: list[str | int] | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    extent: tuple[int, ...] = ()

    @property
    def name(self) -> str | None:
        """The name of a tensor, flattened from its path as torch.distributed.checkpoint does; None for pickles and
        buffers.
        """
        return None if self.path is None else dotted(self.path)

    @property
    def sharded(self) -> bool:
        return self.extent != self.shape

    @property
    def vacant(self) -> bool:
        """Return whether this rank has no elements of the tensor, because there were more ranks than shards."""
        return self.sharded and 0 in self.extent


class ByteRange(NamedTuple):
    file: str  # path in the checkpoint's folder
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Part(Record):
    """A file of one rank in a checkpoint: the places of the data that the rank wrote.

    Each rank writes part 0, which also lists the entries of its state. It may then write part 1, with data that no rank
    wrote before.
    """

    rank: int
    number: int
    term: int
    step: int
    entries: list[Entry]
    where: Mapping[str, ByteRange]  # digest of a content -> the place of its bytes
    files: Mapping[str, tuple[int, str]]  # name -> (size, digest) of each data file that this rank wrote

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", [Entry(*each[:5], *map(tuple, each[5:])) for each in self.entries])
        object.__setattr__(self, "where", {name: ByteRange(*place) for name, place in self.where.items()})

    def needs(self) -> set[str]:
        return {entry.digest for entry in self.entries}


@dataclass(frozen=True, slots=True)
class Manifest(Record):
    """The record of a complete checkpoint, with the digest of each of its files."""

    step: int
    term: int
    generation: int
    pool: str
    world_size: int
    written: str  # the time of writing: an ISO time in UTC
    files: Mapping[str, tuple[int, str]]
    format: int = field(default=FORMAT)


def checked(data: bytes, name: str, wanted: tuple[int, str]) -> bytes:
    """Return ``data``. Raise `Damaged` if its size or digest is not the expected one."""
    if (len(data), digest(data)) != tuple(wanted):
        raise Damaged(f"{name} is not what was written")
    return data


def complete(keys: Iterable[str]) -> list[CheckpointId]:
    """Return the complete checkpoints, newest first, given the file names of a run."""
    result = {at for key in keys if key.endswith(f"/{MANIFEST}") and (at := CheckpointId.of(key)) is not None}
    return sorted(result, reverse=True)


def admission(world: World, rank: int, terms: Sequence[Term]) -> Term | None:
    """Decide which term owns the run's storage when a rank of ``world`` starts.

    A world is a group of processes that save together; a term is its number. Of two worlds of one broadcast (or task),
    the later generation (or attempt) owns the storage, whichever starts first. Of worlds of different broadcasts, the
    last to start owns it, as nothing else orders them.

    Args:
        world: The world that starts.
        rank: The rank of this process.
        terms: The existing terms.

    Returns:
        A term of another world: it owns the storage, and ``world`` may not save. A term of ``world``: if it is not
        among ``terms`` (only on rank 0), rank 0 must create it. None: rank 0 has not created the term yet.
    """
    newest_first = sorted(terms, key=lambda term: term.number, reverse=True)
    for term in newest_first:
        if term.world == world:
            return newest_first[0]
        later = (term.generation, term.attempt) > (world.generation, world.attempt)
        if world.pool and (term.pool, term.job) == (world.pool, world.job) and later:
            return term
    if rank:
        return None
    return Term.begin(newest_first[0].number + 1 if newest_first else 1, world)


def shares(entries: Sequence[Entry], ranks: int) -> list[int]:
    """Return for each entry the rank that writes it, so that ranks write about equally many bytes; -1: all ranks write
    it.

    Each rank writes its own pickle. Ranks' states may differ, so a content may be missing in the assigned rank's state:
    the ranks find such contents by their digests, and write them in their second parts.
    """
    writers = [-1] * len(entries)
    loads = [0] * ranks
    for index, entry in sorted(enumerate(entries), key=lambda each: -each[1].size):
        if entry.kind != "pickle":
            writers[index] = rank = loads.index(min(loads))
            loads[rank] += entry.size
    return writers


def first_parts(parts: Iterable[Part]) -> dict[int, Part]:
    """Return rank -> its part 0, which lists the entries of the rank's state."""
    return {part.rank: part for part in parts if part.number == 0}


def places(parts: Iterable[Part]) -> dict[str, ByteRange]:
    """Return the places of all written contents: digest -> place."""
    return {name: place for part in parts for name, place in part.where.items()}


def lacking(parts: Sequence[Part], ranks: int) -> str | None:
    """Return the reason why the checkpoint is incomplete; None if it is complete (CKPT-1)."""
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
    """Choose the checkpoints that the world of ``term`` may delete.

    Only the newest world deletes anything. It keeps the newest ``keep`` complete checkpoints (CKPT-2), and its own
    incomplete checkpoints after its last complete one, as they may still become complete.

    Args:
        keys: The files of the run.
        folders: The folders of the run, including folders that a failed save left empty.
        term: The number of the world that deletes.
        keep: The number of complete checkpoints to keep.

    Returns:
        (complete checkpoints, incomplete checkpoints).
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
    """Return the terms whose files are obsolete."""
    return sorted(number for number in term_numbers(keys) if number <= term - TERMS_KEPT)


def verdict(votes: Mapping[int, str], ranks: int) -> str | None:
    """Evaluate the ranks' votes. A vote is "" if the rank could read the checkpoint, otherwise the defect.

    Return the defects; "": every rank has read the checkpoint (CKPT-4). None: votes are missing.
    """
    if against := [f"rank {rank}: {reason}" for rank, reason in sorted(votes.items()) if reason]:
        return "; ".join(against)
    return "" if len(votes) == ranks else None
