"""Pack the views of the pool that nodes receive. The part that is equal for all nodes is packed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import msgpack

from ...actors.interfaces import NodeFacts, NodeId, World
from ...actors.membership import NAMED_MOST

Members = Sequence[tuple[NodeId, NodeFacts]]


class InstanceViews:
    """The packer of a pool's views and worlds, shared by the links of all nodes.

    A view describes the pool to a node; a world describes one run of a broadcast to its ranks. The last view and the
    last world are cached.
    """

    def __init__(self, pool: str, slots: int) -> None:
        self._pool, self._slots = pool, slots
        self._members: Members = ()
        self._shared_view = b""
        self._shared_items = b""  # `_shared_view`, a packed map, without the map's header
        self._by_node: dict[NodeId, tuple[int, NodeFacts]] = {}
        # (rank, node) -> packed peer; most peers of a view are also in the next view
        self._packed: dict[tuple[int, NodeId], bytes] = {}
        self.names_peers = True  # whether the last result of `view` lists the peers
        self._placed = False  # whether `place` was called after the last `view`
        self._world: World | None = None
        # argument ``named`` of `world` -> the packed world: without a list of peers if True, with the list if False
        self._shared_worlds: dict[bool, bytes] = {}

    @property
    def facts(self) -> list[NodeFacts] | None:
        """The facts of the ready nodes, by rank; None: the pool is so large that most nodes get no list of peers."""
        return None if self._placed else [facts for _, facts in self._members]

    def view(self, node: NodeId, members: Members) -> tuple[bytes, bytes] | None:
        """Return a node's packed view (its description of the pool); None: the node is not one of the members.

        The view is in two parts; the second part is one object that all nodes share.
        """
        self._placed = False
        if members is not self._members:
            self._members = members
            self._by_node = {each: (rank, facts) for rank, (each, facts) in enumerate(members)}
            # drop the packed descriptions of broadcasts: they leave out the peers that the previous view listed
            self._world = None
            self.names_peers = len(members) <= NAMED_MOST
            accelerators = sum([len(facts.accelerators) for _, facts in members])
            self._shared_view = _pack(self._counts(len(members), accelerators))
            if self.names_peers:
                self._shared_view = _joined(self._shared_view, self._peers())
            self._shared_items = self._shared_view[1:]
        if node not in self._by_node:
            return None
        own = _pack(_own(*self._by_node[node]))
        return _header(self._shared_view, own) + own[1:], self._shared_items

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> bytes:
        """Return a node's packed view of the pool, without peers. The time does not depend on the number of nodes."""
        self._placed = True
        return _pack(self._counts(nodes, accelerators) | _own(rank, facts))

    def _counts(self, nodes: int, accelerators: int) -> dict[str, object]:
        return {
            "pool": self._pool,
            "total_nodes": nodes,
            "workers_per_node": self._slots,
            "total_accelerators": accelerators,
        }

    def _peers(self) -> bytes:
        """Return the peers as a packed map.

        With 1,000 nodes and a cache of packed peers, a new node costs 0.4 ms, not 1.3 ms.
        """
        known = self._packed
        self._packed = packed = {
            at: known.get(at) or _pack(self._peer(at[0], at[0], at[1], 0)) for at in enumerate(self._by_node)
        }
        header = msgpack.Packer().pack_array_header(len(packed))
        return b"".join((b"\x81", _pack("peers"), header, *packed.values()))

    def world(self, world: World, rank: int, *, named: bool = True) -> bytes:
        """Return the packed world (the description of a broadcast's run) of a rank, for `wire.messages.Run`.

        ``named``: the last view that the rank's node received lists the peers, so the world does not repeat the list.
        """
        each = world.ranks_per_node
        if world is not self._world:
            self._world = world
            self._shared_worlds = {}
        if (packed := self._shared_worlds.get(named)) is None:
            shared: dict[str, object] = {
                "generation": world.generation,
                "world_size": world.size,
                "local_world_size": each,
                "total_nodes": len(world.nodes),
                "head_addr": world.head_address,
                "head_port": world.head_port,
            }
            if not named or each > 1 or world.ports or world.nodes != tuple(self._by_node):
                nodes = [node for node in world.nodes for _ in range(each)]
                ports = world.ports or (world.head_port, *[0] * (world.size - 1))
                shared["peers"] = [self._peer(r, r // each, node, ports[r]) for r, node in enumerate(nodes)]
            packed = self._shared_worlds[named] = _pack(shared)
        return _joined(packed, _place(rank, each))

    def _peer(self, rank: int, index: int, node: NodeId, port: int) -> dict[str, Any]:
        known = self._by_node.get(node)  # a rank that runs again alone may have peers that left the pool
        facts = None if known is None else known[1]
        return {
            "rank": rank,
            "node": index,
            "hostname": "" if facts is None else facts.hostname,
            "address": "" if facts is None else facts.address,
            "port": port,
        }


@lru_cache(4096)
def _place(rank: int, each: int) -> bytes:
    return _pack({"rank": rank, "local_rank": rank % each, "node": rank // each, "is_head": rank == 0})


def _joined(a: bytes, b: bytes) -> bytes:
    """Join two packed maps. A map of up to 15 items has a header of one byte: 0x80 + the number of items."""
    return _header(a, b) + a[1:] + b[1:]


def _header(a: bytes, b: bytes) -> bytes:
    return bytes((a[0] + b[0] - 0x80,))


def _own(rank: int, facts: NodeFacts) -> dict[str, object]:
    own: dict[str, object] = {
        "node": rank,
        "hostname": facts.hostname,
        "address": facts.address,
        "accelerators": len(facts.accelerators),
        "accelerator": _accelerator(facts),
    }
    if facts.variables:
        own["variables"] = dict(facts.variables)
    return own


def _accelerator(facts: NodeFacts) -> dict[str, object] | None:
    if not facts.accelerators:
        return None
    kind, memory_gb = facts.accelerators[0]
    return {"type": kind, "count": len(facts.accelerators), "memory_gb": memory_gb}


_pack = cast("Callable[[Any], bytes]", msgpack.packb)
