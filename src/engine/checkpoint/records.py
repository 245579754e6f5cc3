"""What is written beside the data: who is at work, what a rank has, what is complete. JSON, to be read by people too.

The files of a run::

    terms/00000007.json                   world 7 has begun: no world of a lower number may complete anything any more
    terms/00000007/load-0000/...          how its ranks agree on what they resume from
    terms/00000007/calls/...              how its ranks agree on a step that nobody could foresee
    step-000000001200.term-00000007/      one checkpoint (with ``.again-1`` where world 7 saved that step once before):
        rank-00003-5f2a91c0.distcp        data that rank 3 wrote
        rank-00003.0.json                 what rank 3 has, and where its data is: a `Part`
        rank-00003.1.json                 where the rest of it is, when that turned out to be needed
        .metadata                         where tensors are, as torch.distributed.checkpoint has it
        manifest.json                     written last: the checkpoint is complete, and these are its files
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self, TypeVar

R = TypeVar("R", bound="Record")

MANIFEST = "manifest.json"
METADATA = ".metadata"
FORMAT = 1

_FOLDER = re.compile(r"step-(\d+)\.term-(\d+)(?:\.again-(\d+))?")
_TERM = re.compile(r"terms/(\d+)\.json")
_PART = re.compile(r"rank-(\d+)\.([01])\.json")


class Damaged(Exception):
    """A file is not what its digest says, or is not there."""


class At(NamedTuple):
    """One checkpoint. The greater is the newer: a later world's counts more than a later step."""

    term: int
    step: int
    again: int = 0  # how many times its world had saved that step before

    @property
    def folder(self) -> str:
        return f"step-{self.step:012}.term-{self.term:08}{f'.again-{self.again}' if self.again else ''}"

    @property
    def manifest(self) -> str:
        return f"{self.folder}/{MANIFEST}"

    def part(self, rank: int, number: int) -> str:
        return f"{self.folder}/rank-{rank:05}.{number}.json"

    @classmethod
    def of(cls, key: str) -> At | None:
        """Which one the file ``key`` belongs to."""
        found = _FOLDER.fullmatch(key.partition("/")[0])
        return None if found is None else cls(int(found[2]), int(found[1]), int(found[3] or 0))


def term_key(number: int) -> str:
    return f"terms/{number:08}.json"


def term_number(key: str) -> int | None:
    found = _TERM.fullmatch(key)
    return None if found is None else int(found[1])


def part_of(key: str) -> tuple[int, int] | None:
    """(rank, number), where ``key`` is that of a part."""
    found = _PART.fullmatch(key.rpartition("/")[2])
    return None if found is None else (int(found[1]), int(found[2]))


def digest(*pieces: Any) -> str:
    """What ``b2sum --length=256`` prints."""
    hashed = hashlib.blake2b(digest_size=32)
    for piece in pieces:
        hashed.update(piece)
    return hashed.hexdigest()


class Record:
    """A value that is kept as JSON."""

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()  # type: ignore[call-overload]  # subclasses are dataclasses

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Raises: Damaged"""
        try:
            facts = json.loads(data)
            return cls(**{each.name: facts[each.name] for each in fields(cls)})  # type: ignore[arg-type]
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"a {cls.__name__.lower()} cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class World(Record):
    """Who saves: one generation of a broadcast, or one attempt of a task alone."""

    pool: str
    job: int
    generation: int
    attempt: int  # 0 where there are several ranks: one that is run again alone is still of its world
    size: int
    nonce: str = ""  # outside a pool nothing else tells worlds apart


@dataclass(frozen=True, slots=True)
class Term(Record):
    """A world's turn, by number: it fences all worlds with a lower one."""

    number: int
    pool: str
    job: int
    generation: int
    attempt: int
    size: int
    nonce: str

    @classmethod
    def begin(cls, number: int, world: World) -> Term:
        return cls(number, **asdict(world))

    @property
    def world(self) -> World:
        return World(self.pool, self.job, self.generation, self.attempt, self.size, self.nonce)


class Entry(NamedTuple):
    """One piece of a rank's state: its pickle (always the first), a tensor or a buffer.

    ``digest`` is that of the content. For a tensor: its ``path`` in the state, ``dtype`` and whole ``shape``, and where
    in it (``offset``, ``extent``) this rank's part lies.
    """

    digest: str
    kind: str  # "pickle", "tensor", "buffer"
    size: int
    path: list[str | int] | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    extent: tuple[int, ...] = ()

    @property
    def name(self) -> str | None:
        """As torch.distributed.checkpoint flattens names."""
        return None if self.path is None else ".".join(map(str, self.path))

    @property
    def sharded(self) -> bool:
        return self.extent != self.shape

    @property
    def vacant(self) -> bool:
        """There were more ranks than parts, and none fell to this one."""
        return self.sharded and 0 in self.extent


class Where(NamedTuple):
    """Bytes of a checkpoint."""

    file: str  # in its folder
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Part(Record):
    """What one rank has (number 0), and where it put what it wrote (number 0, and perhaps 1)."""

    rank: int
    number: int
    term: int
    step: int
    entries: list[Entry]
    where: Mapping[str, Where]  # by digest of the content
    files: Mapping[str, tuple[int, str]]  # (size, digest) of what it wrote

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", [_entry(each) for each in self.entries])
        object.__setattr__(self, "where", {name: Where(*place) for name, place in self.where.items()})

    def needs(self) -> set[str]:
        return {entry.digest for entry in self.entries}


@dataclass(frozen=True, slots=True)
class Manifest(Record):
    """A complete checkpoint, and the digest of each of its files."""

    step: int
    term: int
    generation: int
    pool: str
    world_size: int
    written: str  # when
    files: Mapping[str, tuple[int, str]]
    format: int = field(default=FORMAT)


def checked(data: bytes, name: str, wanted: tuple[int, str]) -> bytes:
    """Raises: Damaged"""
    size, expected = wanted
    if len(data) != size or digest(data) != expected:
        raise Damaged(f"{name} is not what was written")
    return data


def complete(keys: Iterable[str]) -> list[At]:
    """The complete checkpoints among the files of a run, newest first."""
    found = {at for key in keys if key.endswith(f"/{MANIFEST}") and (at := At.of(key)) is not None}
    return sorted(found, reverse=True)


def _entry(values: Any) -> Entry:
    if isinstance(values, Entry):
        return values
    kept, kind, size, path, dtype, *boxes = values
    return Entry(kept, kind, size, path, dtype, *(tuple(box) for box in boxes))
