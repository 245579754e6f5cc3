"""Saves in the background: one thread per save, one save at a time. A failed save raises its error in the training's
next call.

The thread writes this rank's part of a checkpoint. On rank 0, it also writes the manifest once all ranks' parts exist.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from ..api.errors import CheckpointError
from . import records
from .agreement import Participant
from .records import ByteRange, CheckpointId, Damaged, Manifest, Part, Piece
from .snapshot import Snapshot
from .store import Store, polls


class WrittenParts:
    """The parts of one checkpoint (each holds the data of one rank) that ranks have written so far.

    Each part is read from the storage only once.
    """

    def __init__(self, store: Store, at: CheckpointId) -> None:
        self._store = store
        self._at = at
        self._known: dict[str, Part] = {}
        # file name -> (size, digest), for the parts and for the data files that the parts list
        self.files: dict[str, tuple[int, str]] = {}

    def read(self) -> list[Part]:
        for key in self._store.names(self._at.folder):
            name = key.rpartition("/")[2]
            if records.is_part(name) and name not in self._known:
                with suppress(FileNotFoundError, Damaged):  # another process is deleting this part
                    data = self._store.get(key)
                    self._known[name] = part = Part.load(data)
                    self.files |= {**part.files, name: (len(data), records.digest(data))}
        return list(self._known.values())


class BackgroundSaves:
    """The saves of this rank that are not complete yet. Use this object in one thread only."""

    def __init__(
        self, participant: Participant, *, keep: int, completed: Callable[[int, int], object] = lambda *_: None
    ) -> None:
        """Create the saves of a rank.

        Args:
            participant: The role of this process: its rank, its run and the storage.
            keep: The number of complete checkpoints to keep.
            completed: Called on rank 0 with the step and the size in bytes of each complete checkpoint.
        """
        self.participant = participant
        self._store = participant.store
        self._keep = keep
        self._completed = completed
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()  # set: do not wait for the parts of other ranks
        self._failure: CheckpointError | None = None
        self._incomplete: dict[CheckpointId, WrittenParts] = {}  # on rank 0: checkpoints that have no manifest yet
        self._newest: CheckpointId | None = None
        self._begun: Counter[int] = Counter()  # step -> number of saves of this step that began; equal on all ranks

    def start(self, step: int, snapshot: Snapshot, *, delay_s: float) -> None:
        """Write the save in the background. `wait_written` must have returned for the previous save."""
        self._hurry.clear()
        self._newest = at = CheckpointId(self.participant.term.number, step, self._begun[step])
        self._begun[step] += 1
        self._thread = threading.Thread(target=self._run, args=[at, snapshot, delay_s], name="outrider-checkpoint")
        self._thread.start()  # not a daemon thread: a script must not end before its last save is written

    def wait_written(self, *, hurry: bool) -> None:
        """Return when this rank's part of the latest save is written. Raise the error if the save failed.

        ``hurry``: do not wait for the parts of other ranks.
        """
        if self._thread is not None:
            if hurry:
                self._hurry.set()
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def wait_complete(self) -> None:
        """Return when all parts and the manifest of the latest save are written.

        Raise an error if parts are still missing after the time-out of the ranks.
        """
        self.wait_written(hurry=False)
        newest, self._newest = self._newest, None
        if newest is None:
            return
        lack: str | None = None
        for _ in polls(self._store, self.participant.within_s):
            if self.participant.rank == 0:
                lack = self._complete()
            else:  # rank 0 may have deleted this checkpoint after it completed a later one, so accept later ones too
                done = any(at >= newest for at in records.complete(self._store.names()))
                lack = None if done else "rank 0 has not completed it"
            if lack is None:
                return
        raise self.participant.error(
            f"Step {newest.step} of {self.participant.run!r} is not complete at {self._store.url} after "
            f"{self.participant.within_s:g} s: {lack}. Every rank must save the same steps; checkpoint(timeout=...) is "
            "how long they wait for each other."
        )

    def _run(self, at: CheckpointId, snapshot: Snapshot, delay_s: float) -> None:
        try:
            self._hurry.wait(delay_s)
            self._write(at, snapshot)
            if self.participant.rank == 0:
                self._incomplete[at] = WrittenParts(self._store, at)
                for _ in polls(self._store, self.participant.within_s, self._hurry):
                    if self._complete() is None:
                        break
        except CheckpointError as error:
            error.run = self.participant.run
            self._failure = error
        except Exception as error:  # noqa: BLE001  the training's thread raises the error
            self._failure = self.participant.error(
                f"Step {at.step} of {self.participant.run!r} could not be saved at {self._store.url} "
                f"({type(error).__name__}: {error}). Older checkpoints stay loadable, and the next save may be tried."
            )
            self._failure.__cause__ = error

    def _write(self, at: CheckpointId, snapshot: Snapshot) -> None:
        """Write this rank's part.

        First write the contents assigned to this rank. Then write, as a second file, the contents that this rank needs
        and no rank has written.
        """
        self.participant.check()
        snapshot.hash()
        ranks = self.participant.term.size
        writers = records.shares(snapshot.entries, ranks)
        mine = {
            entry.digest
            for index, entry in enumerate(snapshot.entries)
            if snapshot.writers.get(index, writers[index] in (-1, self.participant.rank))
        }
        first = self._write_part(at, snapshot, 0, mine)
        missing = first.needs() - first.where.keys()
        parts = WrittenParts(self._store, at)
        for _ in polls(self._store, self.participant.within_s, self._hurry):
            if not missing:
                return
            known = parts.read()
            missing -= records.places(known).keys()
            if len(records.first_parts(known)) == ranks:
                break
        if missing:
            self._write_part(at, snapshot, 1, missing)

    def _write_part(self, at: CheckpointId, snapshot: Snapshot, number: int, digests: set[str]) -> Part:
        store, rank = self._store, self.participant.rank
        file = f"rank-{rank:05}-{secrets.token_hex(4)}.distcp"
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

        key = at.part(rank, number)
        try:
            store.put(f"{at.folder}/{file}", pieces())
            entries = [] if number else snapshot.entries
            part = Part(rank, number, at.term, at.step, entries, where, {file: (size, hashed.hexdigest())})
            if store.create(key, part.dump()):
                return part
            # an earlier process of this rank has already written the part: use that one
            store.delete(f"{at.folder}/{file}")
            return Part.load(store.get(key))
        except CheckpointError:
            # without this part the checkpoint cannot become complete, so free its space
            with suppress(CheckpointError):
                store.delete(key)
                store.delete(f"{at.folder}/{file}")
            raise

    def _complete(self) -> str | None:
        """Complete the checkpoints whose parts all exist, and delete older checkpoints.

        Return what the newest incomplete checkpoint still lacks; None: all checkpoints are complete.
        """
        lacks = {at: self._complete_one(at, self._incomplete[at]) for at in sorted(self._incomplete)}
        done = [at for at, lack in lacks.items() if lack is None]
        if done:
            self._incomplete = {at: parts for at, parts in self._incomplete.items() if at > done[-1]}
            self._clean()
        return lacks[max(self._incomplete)] if self._incomplete else None

    def _complete_one(self, at: CheckpointId, parts: WrittenParts) -> str | None:
        """Write the manifest if every rank's part exists, and return None. Otherwise return what is missing."""
        term = self.participant.term
        known = parts.read()
        if (lack := records.lacking(known, term.size)) is not None:
            return lack
        files = dict(parts.files)
        if any(entry.kind == "tensor" for part in known for entry in part.entries):
            from .tensors import DCP_METADATA, dcp_metadata

            data = dcp_metadata(known)
            self._store.put(f"{at.folder}/{DCP_METADATA}", [data])
            files[DCP_METADATA] = len(data), records.digest(data)
        manifest = Manifest(
            step=at.step,
            term=at.term,
            generation=term.generation,
            pool=term.pool,
            world_size=term.size,
            written=datetime.now(UTC).isoformat(timespec="seconds"),
            files=dict(sorted(files.items())),
        )
        self.participant.check()
        data = manifest.dump()
        if self._store.create(at.manifest, data):
            self._completed(at.step, len(data) + sum(size for size, _ in files.values()))
        return None

    def _clean(self) -> None:
        """Delete obsolete checkpoints. Delete the manifest first, so that no reader loads a half-deleted checkpoint."""
        store, term = self._store, self.participant.term.number
        keys = store.names()
        done, remains = records.to_delete(keys, store.folders(), term=term, keep=self._keep)
        for at in done:
            store.delete(at.manifest)
            store.remove(at.folder)
        for at in remains:
            store.remove(at.folder)
        for number in records.old_terms(keys, term):
            store.remove(f"terms/{number:08}")
            store.delete(records.term_key(number))
