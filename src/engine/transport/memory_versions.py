"""The versions of checkpoints that nodes keep in memory: which are kept, on which nodes, and which version a training
resumes from. No I/O, no clock. A version is the state of all ranks at one step. Each rank leaves its part of the
version in the memory of its node; copies of the part go to the next nodes in the generation, which is one run of the
broadcast on a fixed set of nodes. A version is *safe* when each rank's part has as many copies as requested, or as
there are nodes.

MEMORY-1: the newest safe version is dropped only when a newer version is safe, or when a new generation resumes from
another version or from the storage.
MEMORY-2: all ranks of a generation are offered the same version of a run, with each part verified on the rank's own
node; or no version is offered.
MEMORY-3: the offered version is the newest one with a copy of each part. It is not older than the newest checkpoint in
the storage that a rank has reported, and not sharded if the number of ranks has changed.
MEMORY-4: the copies of a part are on different nodes.
MEMORY-5: a node keeps at most `MOST` parts of one rank in one generation. A version that a rank has skipped can never
become complete, and is dropped.
MEMORY-6: each copy is dropped once. When a job is over, none of its copies is left.
MEMORY-7: when a version is safe, each of its ranks gets one message about that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from ...actors.interfaces import JobId, NodeId
from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple

# Most checkpoint parts that a node keeps of one rank in one generation (run of a broadcast): two in the rank's two
# memory slots, and one that was just reported.
MOST = 3
MOST_RUNS = 64  # most named training runs of one job for which checkpoint versions are kept


class VersionId(NamedTuple):
    """The order of versions: the greater one is newer.

    ``again``: how often the ranks have returned to an earlier step.
    """

    generation: int
    again: int
    step: int


class PartId(NamedTuple):
    job: JobId
    run: str
    version: VersionId
    rank: int


class Left(NamedTuple):
    """A rank's part of a checkpoint version, left on the rank's node; `wire.messages.Kept` reports it."""

    blob: str
    size_bytes: int
    digest: int
    sharded: bool  # whether the part has shards of tensors, whose other shards are in other ranks' parts
    copies: int  # requested number of copies, including the rank's own


class CopyPart(NamedTuple):
    """A decision: copy ``blob`` from node ``source`` to node ``to``. The caller reports the result to `copied`."""

    of: PartId
    source: NodeId
    blob: str
    to: NodeId
    size_bytes: int


class DropCopy(NamedTuple):
    node: NodeId
    blob: str


class TellSafe(NamedTuple):
    """A decision: report to the rank that left ``blob`` on ``node`` that the version has enough copies (is safe)."""

    node: NodeId
    blob: str


@dataclass(slots=True, eq=False)
class Part:
    size_bytes: int
    digest: int
    wanted: int
    at: dict[NodeId, str] = field(default_factory=dict)  # node -> name of the blob with the node's copy of this part
    # the decision to make when the version has enough copies (is safe); None: no rank has left this part
    left: TellSafe | None = None


@dataclass(slots=True, eq=False)
class Version:
    id: VersionId
    ranks: int
    sharded: bool = False
    parts: dict[int, Part] = field(default_factory=dict)
    is_reported_safe: bool = False

    @property
    def safe(self) -> bool:
        return len(self.parts) == self.ranks and all(len(part.at) >= part.wanted for part in self.parts.values())

    def gives(self, ranks: int) -> bool:
        """Return whether ``ranks`` ranks can resume from this version: rank r uses the part of rank ``r %
        self.ranks``.
        """
        if self.sharded and ranks != self.ranks:
            return False
        needed = range(min(ranks, self.ranks))
        return all(rank in self.parts and self.parts[rank].at for rank in needed)


@dataclass(slots=True, eq=False)
class RunVersions:
    """The versions of one run of a job.

    ``latest``: rank -> the latest version that the rank has reported in the current generation (run of the broadcast).
    """

    versions: dict[VersionId, Version] = field(default_factory=dict)
    latest: dict[int, VersionId] = field(default_factory=dict)
    stored: VersionId | None = None  # the newest version that is known to be complete in the storage


class MemoryVersions:
    """All checkpoint versions of a pool.

    ``decisions`` collects the actions for the caller, who carries them out and clears it.
    """

    most = MOST

    def __init__(self) -> None:
        self.decisions: list[CopyPart | DropCopy | TellSafe] = []
        self.jobs: dict[JobId, dict[str, RunVersions]] = {}

    # --- reports of ranks -----------------------------------------------------------------------------------------

    def kept(self, part_id: PartId, part: Left, nodes: Sequence[NodeId], each: int) -> None:
        """Note that a rank has left its part of a checkpoint in the memory of its node.

        ``nodes``: the nodes of the broadcast's current run. ``each``: the number of ranks per node.
        """
        job, run, version, rank = part_id
        node = nodes[rank // each]
        runs = self.jobs.setdefault(job, {})
        if run not in runs and len(runs) == MOST_RUNS:
            self.decisions.append(DropCopy(node, part.blob))
            return
        of = runs.setdefault(run, RunVersions())
        of.latest = {rank: latest for rank, latest in of.latest.items() if latest.generation == version.generation}
        of.latest[rank] = max(version, of.latest.get(rank, version))
        mine = [known.id for known in of.versions.values() if rank in known.parts]
        mine = [known for known in mine if known.generation == version.generation]
        if of.latest[rank] != version or version in mine or len(mine) == self.most:
            self.decisions.append(DropCopy(node, part.blob))  # a correct node never sends this report: drop its copy
        else:
            known = of.versions.setdefault(version, Version(version, len(nodes) * each))
            known.sharded = known.sharded or part.sharded
            wanted = max(1, min(part.copies, len(nodes)))
            known.parts[rank] = Part(part.size_bytes, part.digest, wanted, {node: part.blob}, TellSafe(node, part.blob))
            first = rank // each
            for to in [nodes[(first + n) % len(nodes)] for n in range(1, wanted)]:
                self.decisions.append(CopyPart(part_id, node, part.blob, to, part.size_bytes))
        self._settle(of)

    def stored(self, job: JobId, run: str, version: VersionId) -> None:
        """Note that a checkpoint is complete in the storage."""
        if (of := self.jobs.get(job, {}).get(run)) is not None:
            of.stored = max(version, of.stored or version)

    def copied(self, part_id: PartId, node: NodeId, blob: str | None) -> None:
        """Note that a node has a copy of a part as ``blob``; None: the copy failed."""
        of, part = self.jobs.get(part_id.job, {}).get(part_id.run), self._part(part_id)
        if of is None or part is None or node in part.at:
            if blob is not None:
                self.decisions.append(DropCopy(node, blob))
            return
        if blob is None:
            part.wanted = max(1, part.wanted - 1)
        else:
            part.at[node] = blob
        self._settle(of)

    # --- ends of nodes and jobs -----------------------------------------------------------------------------------

    def lost(self, node: NodeId) -> None:
        for runs in self.jobs.values():
            for of in runs.values():
                for version in of.versions.values():
                    for part in version.parts.values():
                        part.at.pop(node, None)

    def over(self, job: JobId) -> None:
        for of in self.jobs.pop(job, {}).values():
            for version in of.versions.values():
                self._drop(version)

    # --- resuming a new generation --------------------------------------------------------------------------------

    def chosen(self, job: JobId, run: str, ranks: int) -> Version | None:
        """Return the version from which ``ranks`` ranks resume; None: resume from the storage, or start from the
        beginning.
        """
        of = self.jobs[job][run]
        newest_first = sorted(of.versions.values(), key=lambda version: version.id, reverse=True)
        choice = next((version for version in newest_first if version.gives(ranks)), None)
        return None if choice is None or (of.stored is not None and choice.id < of.stored) else choice

    def damaged(self, part_id: PartId, node: NodeId) -> None:
        """Note that the copy on a node is damaged or unreadable, and drop it."""
        part = self._part(part_id)
        if part is not None and (blob := part.at.pop(node, None)) is not None:
            self.decisions.append(DropCopy(node, blob))

    def placed(self, part_id: PartId, node: NodeId, blob: str) -> bool:
        """Note a verified copy of a part on the node of a rank that needs it.

        Return False if the part is no longer needed.

        The verified copy replaces an unverified copy that has arrived on the node in the meantime.
        """
        part = self._part(part_id)
        before = blob if part is None else part.at.get(node)
        if before is not None:
            self.decisions.append(DropCopy(node, before))
        if part is not None:
            part.at[node] = blob
        return part is not None

    def resumed(self, job: JobId, run: str, version: VersionId | None) -> None:
        """Note the version from which a restarted broadcast resumes. All other versions are dropped."""
        of = self.jobs.get(job, {}).get(run)
        if of is not None:
            for each in [each for each in of.versions if each != version]:
                self._drop(of.versions.pop(each))

    # --- dropping versions ----------------------------------------------------------------------------------------

    def _settle(self, of: RunVersions) -> None:
        for version in of.versions.values():
            if version.safe and not version.is_reported_safe:
                version.is_reported_safe = True
                self.decisions += [part.left for part in version.parts.values() if part.left is not None]
        newest = max((version.id for version in of.versions.values() if version.safe), default=None)
        for version in [*of.versions.values()]:
            if (newest is not None and version.id < newest) or self._is_passed_by(of, version):
                del of.versions[version.id]
                self._drop(version)

    def _is_passed_by(self, of: RunVersions, version: Version) -> bool:
        """Return whether a rank has skipped this version.

        In the same generation (run of the broadcast), the rank has reported a newer version, and never this one.
        """
        return any(
            latest > version.id and latest.generation == version.id.generation and rank not in version.parts
            for rank, latest in of.latest.items()
        )

    def _part(self, part_id: PartId) -> Part | None:
        of = self.jobs.get(part_id.job, {}).get(part_id.run)
        version = None if of is None else of.versions.get(part_id.version)
        return None if version is None else version.parts.get(part_id.rank)

    def _drop(self, version: Version) -> None:
        self.decisions += self._copies(version)

    def _copies(self, version: Version) -> Iterator[DropCopy]:
        for part in version.parts.values():
            yield from (DropCopy(node, blob) for node, blob in part.at.items())
