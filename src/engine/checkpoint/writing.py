"""Write one rank's part of a checkpoint, and the manifest once all parts exist. Runs in the background."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event

from ..api.errors import CheckpointError
from .decisions import first_parts, lacking, old_terms, shares, to_delete, written_digests
from .participant import Participant
from .records import (
    MANIFEST,
    METADATA,
    ByteRange,
    CheckpointId,
    Damaged,
    Manifest,
    Part,
    digest,
    part_of,
    term_key,
)
from .snapshot import Snapshot
from .store import Piece, polls


class Parts:
    """The parts of one checkpoint that have been written so far, each read once."""

    def __init__(self, participant: Participant, at: CheckpointId) -> None:
        self._participant = participant
        self._at = at
        self.records: dict[str, bytes] = {}  # by file name
        self.known: dict[str, Part] = {}

    def look(self) -> list[Part]:
        store, folder = self._participant.store, self._at.folder
        for key in store.names(folder):
            name = key.rpartition("/")[2]
            if part_of(name) is not None and name not in self.known:
                with suppress(FileNotFoundError, Damaged):  # the part is being removed
                    data = store.get(key)
                    self.known[name] = Part.load(data)
                    self.records[name] = data
        return list(self.known.values())


def write(participant: Participant, at: CheckpointId, snapshot: Snapshot, *, hurry: Event, within_s: float) -> None:
    """Write this rank's part: first its share, then contents that it needs and no rank has written.

    Until ``hurry`` is set, or ``within_s`` have passed, it waits for the other ranks' parts before the second step.

    Raises:
        CheckpointFenced: a later world has taken the run over.
        CheckpointError: the storage failed.
    """
    participant.check()
    snapshot.hash()
    writers = shares(snapshot.entries, participant.term.size)
    mine = {
        entry.digest
        for index, entry in enumerate(snapshot.entries)
        if snapshot.writers.get(index, writers[index] in (-1, participant.rank))
    }
    first = _write_part(participant, at, snapshot, 0, mine)
    missing = first.needs() - written_digests([first])
    parts = Parts(participant, at)
    for _ in polls(participant.store, within_s, hurry):
        if not missing:
            return
        known = parts.look()
        missing = first.needs() - written_digests([first, *known])
        if len(first_parts(known)) == participant.term.size:
            break
    if missing:
        _write_part(participant, at, snapshot, 1, missing)


def _write_part(participant: Participant, at: CheckpointId, snapshot: Snapshot, number: int, digests: set[str]) -> Part:
    store = participant.store
    file = f"rank-{participant.rank:05}-{secrets.token_hex(4)}.distcp"
    where: dict[str, ByteRange] = {}
    hashed, size = hashlib.blake2b(digest_size=32), 0

    def pieces() -> Iterator[Piece]:
        nonlocal size
        for index, entry in enumerate(snapshot.entries):
            if entry.digest in digests and entry.digest not in where:
                piece = snapshot.payload(index)
                where[entry.digest] = ByteRange(file, size, len(piece))
                size += len(piece)
                hashed.update(piece)
                yield piece

    key = at.part(participant.rank, number)
    try:
        store.put(f"{at.folder}/{file}", pieces())
        part = Part(
            rank=participant.rank,
            number=number,
            term=at.term,
            step=at.step,
            entries=[] if number else snapshot.entries,
            where=where,
            files={file: (size, hashed.hexdigest())},
        )
        if store.create(key, part.dump()):
            return part
        store.delete(f"{at.folder}/{file}")  # an earlier process of this rank has written the part already
        return Part.load(store.get(key))
    except CheckpointError:
        with suppress(CheckpointError):  # the checkpoint cannot become complete any more: free its space
            store.delete(key)
            store.delete(f"{at.folder}/{file}")
        raise


def complete_checkpoint(participant: Participant, at: CheckpointId, parts: Parts) -> str | None:
    """Write the manifest if every rank's part exists; otherwise return what is missing. For rank 0.

    Raises:
        CheckpointFenced: a later world has taken the run over.
        CheckpointError: the storage failed.
    """
    known = parts.look()
    if (lack := lacking(known, participant.term.size)) is not None:
        return lack
    files = {name: entry for part in known for name, entry in part.files.items()}
    files |= {name: (len(data), digest(data)) for name, data in parts.records.items()}
    if any(entry.kind == "tensor" for part in known for entry in part.entries):
        from .dcp import metadata

        data = metadata(known)
        participant.store.put(f"{at.folder}/{METADATA}", [data])
        files[METADATA] = len(data), digest(data)
    manifest = Manifest(
        step=at.step,
        term=at.term,
        generation=participant.term.generation,
        pool=participant.term.pool,
        world_size=participant.term.size,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        files=dict(sorted(files.items())),
    )
    participant.check()
    participant.store.create(f"{at.folder}/{MANIFEST}", manifest.dump())
    return None


def clean(participant: Participant, keep: int) -> None:
    """Delete what is not needed any more, each checkpoint's manifest first, so that nobody loads half a checkpoint."""
    store = participant.store
    keys = store.names()
    done, remains = to_delete(keys, store.folders(), term=participant.term.number, keep=keep)
    for at in done:
        store.delete(at.manifest)
        store.remove(at.folder)
    for at in remains:
        store.remove(at.folder)
    for number in old_terms(keys, participant.term.number):
        store.remove(f"terms/{number:08}")
        store.delete(term_key(number))
