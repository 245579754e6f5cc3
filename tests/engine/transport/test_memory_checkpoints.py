"""Copies of checkpoints in memory: brought to the nodes of a new generation, and verified there (MEMORY-2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.actors.interfaces import JobId, NodeId, Order, World
from outrider.engine.objects.blob_transfers import BlobTransfers
from outrider.engine.objects.node_objects import NodeObjects
from outrider.engine.serialization.payload import Blob, Received
from outrider.engine.transport import memory_checkpoints
from outrider.engine.transport.memory_checkpoints import MemoryCheckpoints, NodeReplicas
from outrider.engine.transport.memory_versions import Part, PartId
from outrider.engine.wire import messages as parts
from outrider.engine.wire import messages as wire

pytestmark = pytest.mark.anyio
JOB = JobId(1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class PlayedNode:
    """A node that has blobs by name, some of them damaged, and answers at the next turn of the loop."""

    def __init__(self, number: int, checkpoints: MemoryCheckpoints, *, same_host: bool, reached: bool) -> None:
        self.same_host, self.reached = same_host, reached
        self.through_client = 0
        self.slow: asyncio.Event | None = None  # what comes from another node comes when this is set
        self.asked_for: list[tuple[str, str]] = []  # of other nodes: their blob, and its name here
        self.blobs: set[str] = set()
        self.damaged: set[str] = set()
        self.silent = self.ill = False  # ill: all that it has is damaged
        self.sent: list[wire.Message] = []
        transfers, objects = cast("BlobTransfers", self), cast("NodeObjects", self)
        self.end = NodeReplicas(NodeId(number), checkpoints, transfers, objects, send=self.send)
        checkpoints.joined(self.end)

    def send(self, message: wire.Message) -> None:
        self.sent.append(message)
        if isinstance(message, wire.Drop):
            self.blobs -= {*message.blobs}
        elif isinstance(message, parts.Replicate) and not self.silent:
            if message.path:
                self.blobs.add(message.blob)
            there = message.blob in self.blobs
            bad = not there or (message.digest is not None and (self.ill or message.blob in self.damaged))
            answer = parts.Replicated(message.blob, f"/of/{message.blob}", "it is damaged" if bad else "")
            asyncio.get_running_loop().call_soon(self.end.received, answer, None)

    def spawn(self, work: Any) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    async def copy(self, home: PlayedNode, blob: str, name: str, size_bytes: int) -> bool:
        assert size_bytes == 100
        self.asked_for.append((blob, name))
        if self.slow is not None:
            await self.slow.wait()
        if self.reached and blob in home.blobs:
            self.blobs.add(name)
        return name in self.blobs

    async def place(self, blob: Blob) -> None:
        self.blobs.add(blob.name)
        self.through_client += 1

    async def bring_kept(self, value: wire.Value) -> Received:
        if self.end.closed:
            raise ConnectionResetError("the node is lost")
        return Received(bytearray(100), None)


class Played:
    def __init__(
        self,
        ranks: int = 4,
        *,
        same_host: bool = True,
        reached: bool = True,
        kind: type[MemoryCheckpoints] = MemoryCheckpoints,
    ) -> None:
        self.checkpoints = kind()
        self.nodes = [
            PlayedNode(number, self.checkpoints, same_host=same_host, reached=reached) for number in range(ranks + 2)
        ]
        self.at = [*range(ranks)]  # node by rank
        self.generation = 1
        self.checkpoints.expect(JOB)

    def order(self, rank: int) -> Order:
        world = World(self.generation, tuple(map(NodeId, self.at)), 1, "h", 1)
        return Order(cast("Any", 10 * self.generation + rank), cast("Any", SimpleNamespace(job=JOB)), 1, world, rank)

    async def saves(self, step: int) -> None:
        for rank, number in enumerate(self.at):
            node, blob = self.nodes[number], f"{self.generation}.{step}.{rank}"
            node.blobs.add(blob)
            node.end.received(parts.Kept(1, "run", 0, step, 2, False, 100, 7, blob), self.order(rank))
        for _ in range(8):
            await asyncio.sleep(0)

    def lose(self, number: int) -> None:
        self.nodes[number].end.close()

    async def offers(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        orders = [self.order(rank) for rank in range(len(self.at))]
        assert all(map(self.checkpoints.may_offer, orders))
        return await asyncio.gather(*map(self.checkpoints.offer, orders))

    def copies(self) -> int:
        return sum(len(node.blobs) for node in self.nodes if not node.end.closed)


@pytest.mark.parametrize(
    ("same_host", "reached"),
    [(True, True), (False, True), (False, False)],
    ids=["on one computer", "from node to node", "through the client"],
)
async def test_the_node_in_a_lost_ones_place_gets_the_copy_and_all_ranks_the_same_version(
    same_host: bool, reached: bool
) -> None:
    played = Played(same_host=same_host, reached=reached)
    await played.saves(1)
    await played.saves(2)
    assert played.copies() == 8
    for rank, node in enumerate(played.nodes[:4]):
        told = [message.blobs for message in node.sent if isinstance(message, parts.Safe)]
        assert told == [(f"1.{step}.{rank}",) for step in (1, 2)]
    played.lose(1)
    played.at[1], played.generation = 4, 2
    offers = await played.offers()
    assert all('"step": 2' in name for names, _ in offers for name in names)
    for rank, (names, blobs) in enumerate(offers):
        assert names[0].startswith(f"checkpoint:{20 + rank}:")
        assert blobs[0] in played.nodes[played.at[rank]].blobs
    await played.saves(3)
    assert played.copies() == 8, "that from which they have resumed is dropped"
    assert any(node.through_client for node in played.nodes) == (not same_host and not reached)
    played.checkpoints.over(JOB)
    assert played.copies() == 0


async def test_a_damaged_copy_is_done_without_and_without_another_nobody_is_offered_any() -> None:
    await damages(MemoryCheckpoints)


class TrustsNodes(MemoryCheckpoints):
    async def _have(self, part_id: PartId, part: Part, node: NodeReplicas) -> str:
        return part.at.get(node.node) or await super()._have(part_id, part, node)


async def test_verifying_falls_without_its_guard() -> None:
    with pytest.raises(AssertionError, match="MEMORY-2"):
        await damages(TrustsNodes)


async def damages(kind: type[MemoryCheckpoints]) -> None:
    played = Played(kind=kind)
    await played.saves(1)
    played.nodes[0].damaged = {"1.1.0"}
    played.generation = 2
    offers = await played.offers()
    assert all(names for names, _ in offers)
    assert "1.1.0" not in played.nodes[0].blobs, "MEMORY-2"
    played.nodes[0].ill = played.nodes[1].ill = True
    played.generation = 3
    assert await played.offers() == [((), ())] * 4
    assert played.copies() == 0


async def test_a_node_that_is_lost_meanwhile_leaves_the_choice_to_the_next_generation() -> None:
    played = Played()
    await played.saves(1)
    played.generation = 2
    played.nodes[3].silent = True
    offering = asyncio.ensure_future(played.offers())
    for _ in range(8):
        await asyncio.sleep(0)
    assert not offering.done()
    played.lose(3)
    assert await offering == [((), ())] * 4
    played.at[3], played.generation = 5, 3
    assert all(names for names, _ in await played.offers())


@pytest.mark.parametrize("same_host", [True, False])
@pytest.mark.parametrize("silent", [1, 4], ids=["has its part", "gets its part"])
async def test_a_node_that_says_nothing_holds_up_a_generation_for_a_time_alone(
    same_host: bool, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks go on from the version before, or else from the storage."""
    played = Played(same_host=same_host)
    await played.saves(1)
    played.lose(3)
    played.at[3], played.generation = 4, 2
    played.nodes[silent].silent = True
    monkeypatch.setattr(memory_checkpoints, "WAIT_S", 0.01)
    async with asyncio.timeout(60):
        assert await played.offers() == [((), ())] * 4
    assert played.copies() == 0
    monkeypatch.undo()
    played.nodes[silent].silent = False
    await played.saves(2)
    played.generation = 3
    assert all(names for names, _ in await played.offers())


async def test_a_node_that_never_gives_what_it_has_holds_up_a_generation_for_a_time_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(same_host=False)
    await played.saves(1)
    played.lose(3)
    played.at[3], played.generation = 4, 2
    played.nodes[4].slow = asyncio.Event()
    monkeypatch.setattr(memory_checkpoints, "WAIT_S", 0.01)
    async with asyncio.timeout(60):
        assert await played.offers() == [((), ())] * 4


async def test_what_is_left_of_a_job_that_never_runs_again_is_dropped_at_once() -> None:
    played = Played()
    played.checkpoints.over(JOB)
    await played.saves(1)
    assert played.copies() == 0


async def test_what_a_node_has_lost_or_never_had_is_nobodys() -> None:
    played = Played()
    end = played.nodes[0].end
    end.received(parts.Kept(1, "run", 0, 1, 2, False, 100, 7, f"{wire.LOST}no room"), played.order(0))
    end.received(parts.Replicated("forged", "/dev/zero", ""), None)
    end.received(parts.Kept(1, "run", 0, 1, 2, False, 100, 7, "x"), played.order(1))  # another node's rank
    end.received(parts.Stored(1, "run", 0, 1), None)
    assert not played.checkpoints.versions.jobs


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def keeps(played: Played, rank: int, step: int) -> None:
    node, blob = played.nodes[played.at[rank]], f"{played.generation}.{step}.{rank}"
    node.blobs.add(blob)
    node.end.received(parts.Kept(1, "run", 0, step, 2, False, 100, 7, blob), played.order(rank))


async def test_a_node_is_not_asked_for_what_was_dropped_before_its_copy_began() -> None:
    """A node that is to hand on what it does not have says for ever that there is nothing new of it."""
    played = Played(same_host=False)
    keeps(played, 0, 2)
    keeps(played, 1, 1)  # which rank 0 has passed by
    await turns()
    assert [blob for node in played.nodes for blob, _ in node.asked_for] == ["1.2.0"]


async def test_the_copy_of_what_is_dropped_meanwhile_ends() -> None:
    played = Played(same_host=False)
    for node in played.nodes:
        node.slow = asyncio.Event()
    await played.saves(1)
    keeps(played, 0, 2)
    await turns()
    played.checkpoints.over(JOB)
    await turns()
    under_way = {name for node in played.nodes for _, name in node.asked_for}
    dropped = {
        name for node in played.nodes for each in node.sent if isinstance(each, wire.Drop) for name in each.blobs
    }
    assert len(under_way) == 5
    assert under_way <= dropped
    assert not played.checkpoints._copying
    assert played.copies() == 0


async def test_a_copy_that_comes_while_the_rank_is_given_a_verified_one_makes_room_for_it() -> None:
    """The rank of a lost node runs where its copy is on its way to."""
    played = Played(same_host=False)
    played.nodes[2].slow = slow = asyncio.Event()
    await played.saves(1)  # but for the copy of rank 1's part
    played.at, played.generation = [0, 2, 1, 3], 2
    offering = asyncio.ensure_future(played.offers())
    await turns()
    assert not offering.done()
    slow.set()
    for rank, (names, blobs) in enumerate(await offering):
        assert names
        assert blobs[0] in played.nodes[played.at[rank]].blobs, "MEMORY-2"
    played.checkpoints.over(JOB)
    await turns()
    assert played.copies() == 0


async def test_a_generation_that_begins_meanwhile_ends_the_offer_to_the_one_before() -> None:
    played = Played(same_host=False)
    await played.saves(1)
    played.at, played.generation = [0, 4, 2, 3], 2
    played.nodes[4].slow = asyncio.Event()
    before = asyncio.ensure_future(played.offers())
    await turns()
    played.at, played.generation = [0, 5, 2, 3], 3
    offers = await played.offers()
    assert await before == [((), ())] * 4
    played.nodes[4].slow.set()
    await turns()
    for rank, (names, blobs) in enumerate(offers):
        assert names
        assert blobs[0] in played.nodes[played.at[rank]].blobs
    assert not played.nodes[4].blobs
    assert played.checkpoints.versions.chosen(JOB, "run", 4) is not None


async def test_a_part_that_only_unknown_nodes_have_is_not_chosen_again_and_again() -> None:
    played = Played()
    await played.saves(1)
    of = played.checkpoints.versions.jobs[JOB]["run"]
    (version,) = of.versions.values()
    version.parts[2].at = {NodeId(77): "nowhere"}
    played.generation = 2
    async with asyncio.timeout(60):
        assert await played.offers() == [((), ())] * 4
