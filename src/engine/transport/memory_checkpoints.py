"""The checkpoints that the nodes of a pool keep in memory. This module carries out the decisions of `memory_versions`.

A copy reaches another node by shared memory if both nodes are on this computer. Otherwise it goes directly from node to
node, or through this process if the nodes cannot reach each other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from typing import Any

from ...actors.interfaces import JobId, NodeId, Order, World
from ...lazy_named_tuple import NamedTuple
from ..objects.blob_transfers import BlobTransfers
from ..objects.node_objects import NodeObjects
from ..serialization.payload import Blob, Received
from ..wire import messages as parts
from ..wire import messages as wire
from .memory_versions import CopyPart, DropCopy, Left, MemoryVersions, Part, PartId, Version, VersionId

WAIT_S = 600.0  # seconds for a node to fetch and verify a part: long, as the client may be suspended for minutes
BYTES_PER_S = 10e6  # lowest accepted rate: the limit for a part is `WAIT_S` plus the part's size divided by this rate
PREFIX = "checkpoint:"  # prefix of the names of checkpoint blobs


class Place(NamedTuple):
    """A node's copy of a checkpoint part: the name of the blob, and its path for other nodes on the same computer."""

    blob: str
    path: str


class Unavailable(Exception):
    """The error for a copy of a part that is missing, damaged or late."""


class NodeReplicas:
    """The in-memory copies of checkpoint parts that one node holds."""

    def __init__(
        self,
        node: NodeId,
        checkpoints: MemoryCheckpoints,
        transfers: BlobTransfers,
        objects: NodeObjects,
        *,
        send: Callable[[wire.Message], None],
    ) -> None:
        self.node, self.objects, self.send = node, objects, send
        self._checkpoints, self._transfers = checkpoints, transfers
        self._pending: dict[str, asyncio.Future[parts.Replicated]] = {}
        self._paths: dict[str, str] = {}  # blob -> path of the copy, for nodes on this computer
        self.closed = False

    # --- messages from the node -----------------------------------------------------------------------------------

    def received(self, message: parts.Kept | parts.Stored | parts.Replicated, order: Order | None) -> None:
        """Handle a node's message.

        ``order``: the order of the message's attempt; None: the node does not run the attempt.
        """
        match message:
            case parts.Replicated(blob):
                if (reply := self._pending.pop(blob, None)) is not None and not reply.done():
                    reply.set_result(message)
            case parts.Stored():
                if order is not None and order.world is not None:
                    self._checkpoints.stored(order, order.world, message)
            case parts.Kept(blob=blob):
                if blob.startswith(wire.LOST):
                    return
                if order is None or order.world is None or not self._checkpoints.expects(order.task.job):
                    self.send(wire.Drop((blob,)))
                else:
                    self._checkpoints.kept(self, order, order.world, message)

    def close(self) -> None:
        """Handle that the node is lost."""
        self.closed = True
        for reply in self._pending.values():
            reply.cancel()
        self._checkpoints.gone(self.node)

    # --- requests to the node -------------------------------------------------------------------------------------

    async def get(self, name: str, source: NodeReplicas, blob: str, part: Part, *, verify: bool) -> Place:
        """Copy the ``blob`` of ``source`` to this node under the name ``name``.

        Raises:
            Unavailable: the copy failed or is damaged.
        """
        digest = part.digest if verify else None
        if self.objects.same_host and source.objects.same_host:
            return await self._ask(parts.Replicate(name, source.path(blob), part.size_bytes, digest))
        try:
            if not await self.objects.copy(source.objects, blob, name, part.size_bytes):
                received = await source.bring(blob)
                with memoryview(received.data) as view:
                    size_bytes = view.nbytes
                await self._transfers.place(Blob(name, [received.data], size_bytes))
        except Exception as error:
            raise Unavailable(str(error)) from error
        if digest is None:
            return Place(name, "")
        return await self._ask(parts.Replicate(name, "", part.size_bytes, digest))

    async def verify(self, blob: str, part: Part) -> Place:
        """Make the node verify the digest of the copy of ``part`` that the node keeps as ``blob``.

        Raises:
            Unavailable: the copy is missing or damaged.
        """
        return await self._ask(parts.Replicate(blob, "", part.size_bytes, part.digest))

    async def bring(self, blob: str) -> Received:
        return await self._transfers.bring_kept(wire.Value(b"", None, blob))

    def path(self, blob: str) -> str:
        return self._paths.get(blob, blob)  # a blob that a rank of this node has written: its name is also its path

    def drop(self, blob: str) -> None:
        self._paths.pop(blob, None)
        if not self.closed:
            self.send(wire.Drop((blob,)))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._transfers.spawn(work)

    async def _ask(self, order: parts.Replicate) -> Place:
        if self.closed:
            raise Unavailable("its node is lost")
        reply = self._pending[order.blob] = asyncio.get_running_loop().create_future()
        self.send(order)
        try:
            answer = await asyncio.shield(reply)
        except asyncio.CancelledError:
            if reply.cancelled():
                raise Unavailable("its node is lost") from None
            raise
        if answer.problem:
            raise Unavailable(answer.problem)
        self._paths[order.blob] = answer.path
        return Place(order.blob, answer.path)


class Offer(NamedTuple):
    """The version of a training run's checkpoint from which the ranks of a restarted broadcast resume.

    ``blobs``: for each rank, the name of the blob on the rank's node from which the rank resumes.
    """

    run: str
    version: Version
    blobs: tuple[str, ...]


class MemoryCheckpoints:
    """All in-memory checkpoints of one pool, shared by the links of its nodes."""

    def __init__(self) -> None:
        self.versions = MemoryVersions()
        self._nodes: dict[NodeId, NodeReplicas] = {}
        self._expected: set[JobId] = set()
        self._numbers = itertools.count(1)
        # job -> number of the generation (run of the broadcast) that resumes, and the task that prepares the offers for
        # its ranks
        self._restoring: dict[JobId, tuple[int, asyncio.Task[list[Offer]]]] = {}
        # (node, blob) -> tasks that copy this blob
        self._copying: dict[tuple[NodeId, str], set[asyncio.Task[None]]] = {}

    def joined(self, node: NodeReplicas) -> None:
        self._nodes[node.node] = node

    def gone(self, node: NodeId) -> None:
        if self._nodes.pop(node, None) is not None:
            self.versions.lost(node)

    def expect(self, job: JobId) -> None:
        """Keep checkpoints of this job in memory from now on. All ranks of this job restart when one is lost."""
        self._expected.add(job)

    def expects(self, job: JobId) -> bool:
        return job in self._expected

    def over(self, job: JobId) -> None:
        """Drop all copies of a job that has ended."""
        self._expected.discard(job)
        if (restoring := self._restoring.pop(job, None)) is not None:
            restoring[1].cancel()
        self.versions.over(job)
        self._carry_out()

    # --- parts that ranks have left -------------------------------------------------------------------------------

    def kept(self, node: NodeReplicas, order: Order, world: World, message: parts.Kept) -> None:
        # the message belongs to a run of the broadcast that is over
        if world.nodes[order.rank // world.ranks_per_node] != node.node:
            node.drop(message.blob)
            return
        part = Left(message.blob, message.size_bytes, message.digest, message.sharded, copies=message.copies)
        version = VersionId(world.generation, message.again, message.step)
        part_id = PartId(order.task.job, message.run, version, order.rank)
        self.versions.kept(part_id, part, world.nodes, world.ranks_per_node)
        self._carry_out()

    def stored(self, order: Order, world: World, message: parts.Stored) -> None:
        version = VersionId(world.generation, message.again, message.step)
        self.versions.stored(order.task.job, message.run, version)

    def _carry_out(self) -> None:
        while self.versions.decisions:
            decided, self.versions.decisions = self.versions.decisions, []
            for each in decided:
                if isinstance(each, CopyPart):
                    self._begin_copy(each)
                elif (node := self._nodes.get(each.node)) is None:
                    continue
                elif isinstance(each, DropCopy):
                    for copying in self._copying.pop((each.node, each.blob), ()):
                        copying.cancel()
                    node.drop(each.blob)
                else:
                    node.send(parts.Safe((each.blob,)))

    def _begin_copy(self, copy: CopyPart) -> None:
        source, to = self._nodes.get(copy.source), self._nodes.get(copy.to)
        if source is None or to is None:
            self.versions.copied(copy.of, copy.to, None)
            return
        of = copy.source, copy.blob
        copying = to.spawn(self._copy(copy, source, to))
        self._copying.setdefault(of, set()).add(copying)
        copying.add_done_callback(lambda over: self._copied(of, over))

    def _copied(self, of: tuple[NodeId, str], over: asyncio.Task[None]) -> None:
        if (copying := self._copying.get(of)) is not None:
            copying.discard(over)
            if not copying:
                del self._copying[of]

    async def _copy(self, copy: CopyPart, source: NodeReplicas, to: NodeReplicas) -> None:
        name = f"{PREFIX}{next(self._numbers)}"
        try:
            await to.get(name, source, copy.blob, Part(copy.size_bytes, 0, 1), verify=False)
        except Unavailable:
            to.drop(name)
            self.versions.copied(copy.of, copy.to, None)
        except asyncio.CancelledError:
            # the copy is no longer needed: drop it, as the node would wait forever for bytes that do not arrive
            to.drop(name)
            raise
        else:
            self.versions.copied(copy.of, copy.to, name)
        self._carry_out()

    # --- resuming a new generation --------------------------------------------------------------------------------

    def may_offer(self, order: Order) -> bool:
        """Return whether a restarted broadcast may resume from checkpoints in memory. If True, call `offer` next."""
        return order.world is not None and order.world.generation > 1 and order.task.job in self.versions.jobs

    async def offer(self, order: Order) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names and blobs from which a rank resumes, once all checkpoint parts are on the ranks' nodes."""
        world, job = order.world, order.task.job
        assert world is not None, "it is a rank"
        generation, restoring = self._restoring.get(job, (0, None))
        if restoring is None or generation != world.generation:
            # cancel the task of an earlier run of the broadcast: it would drop copies that this run needs
            if restoring is not None:
                restoring.cancel()
            restoring = asyncio.ensure_future(self._restore(job, world))
            self._restoring[job] = world.generation, restoring
        try:
            offers = await asyncio.shield(restoring)
        except asyncio.CancelledError:
            if not restoring.cancelled():
                raise
            offers = []  # the job, or this run of the broadcast, has ended
        return (
            tuple(f"{PREFIX}{order.attempt}:{_offer_text(each, order.rank)}" for each in offers),
            tuple(each.blobs[order.rank] for each in offers),
        )

    async def _restore(self, job: JobId, world: World) -> list[Offer]:
        offers: list[Offer] = []
        for run in [*self.versions.jobs.get(job, {})]:
            while (version := self.versions.chosen(job, run, world.size)) is not None:
                places = await self._place(job, run, version, world)
                if places is None:  # a node is lost, so this run of the broadcast ends
                    return []
                if len(places) == world.size:
                    offers.append(Offer(run, version, tuple(places)))
                    break
            self.versions.resumed(job, run, None if version is None else version.id)
            self._carry_out()
        return offers

    async def _place(self, job: JobId, run: str, version: Version, world: World) -> list[str] | None:
        """Copy each part to the nodes of the ranks that need it, and verify it there. Return the blobs by rank.

        If a copy is unusable, drop it and return fewer blobs than ranks. If a node is lost, return None.
        """
        wanted = [(world.nodes[rank // world.ranks_per_node], rank % version.ranks) for rank in range(world.size)]
        places = dict.fromkeys(wanted, "")

        async def place(to: NodeId, rank: int) -> None:
            node = self._nodes.get(to)
            if node is not None:
                places[to, rank] = await self._have(PartId(job, run, version.id, rank), version.parts[rank], node)

        await asyncio.gather(*(place(*each) for each in places))
        self._carry_out()
        if any(to not in self._nodes for to, _ in places):
            return None
        return [places[each] for each in wanted if places[each]]

    async def _have(self, part_id: PartId, part: Part, node: NodeReplicas) -> str:
        """Copy a part to a node, and verify it there. Return its blob, or "" on failure.

        A connected node that does not answer delays all ranks of the broadcast, but at most for the time that
        `_in_time` allows: after that time, the part counts as damaged.
        """
        if (mine := part.at.get(node.node)) is not None:
            try:
                return (await _in_time(node.verify(mine, part), part)).blob
            except Unavailable:
                self.versions.damaged(part_id, node.node)
                return ""
        source = next((each for at in part.at if (each := self._nodes.get(at)) is not None), None)
        if source is None:
            # all copies of the part are on unknown nodes: record that, or the version would be chosen again and again
            for at in [*part.at]:
                self.versions.damaged(part_id, at)
            return ""
        name = f"{PREFIX}{next(self._numbers)}"
        try:
            place = await _in_time(node.get(name, source, part.at[source.node], part, verify=True), part)
        except Unavailable:
            node.drop(name)
            if not node.closed:
                self.versions.damaged(part_id, source.node)
            return ""
        except asyncio.CancelledError:
            node.drop(name)
            raise
        return place.blob if self.versions.placed(part_id, node.node, place.blob) else ""


async def _in_time(getting: Coroutine[Any, Any, Place], part: Part) -> Place:
    """Return the result of ``getting``. Raise `Unavailable` if it takes longer than the part's size allows."""
    try:
        async with asyncio.timeout(WAIT_S + part.size_bytes / BYTES_PER_S):
            return await getting
    except TimeoutError:
        raise Unavailable("it did not come in time") from None


def _offer_text(offer: Offer, rank: int) -> str:
    version = offer.version
    size_bytes = version.parts[rank % version.ranks].size_bytes
    fields = {"run": offer.run, "step": version.id.step, "sharded": version.sharded, "size_bytes": size_bytes}
    return json.dumps(fields)
