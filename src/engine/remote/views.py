"""What nodes are told of each other. The part that is the same for all of them is packed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from ...actors.ports import NodeFacts, NodeId, World

Members = Sequence[tuple[NodeId, NodeFacts]]


class Views:
    """One per pool, shared by its links; remembers the last view and the last world."""

    def __init__(self, pool: str, slots: int) -> None:
        self._pool, self._slots = pool, slots
        self._members: Members = ()
        self._shared_view = b""
        self._by_node: dict[NodeId, tuple[int, NodeFacts]] = {}
        self._world: World | None = None
        self._shared_world = b""

    @property
    def facts(self) -> list[NodeFacts]:
        """Of the nodes that are ready, by rank."""
        return [facts for _, facts in self._members]

    def view(self, node: NodeId, members: Members) -> bytes | None:
        """For `wire.messages.View`; None: the node is not one of them."""
        if members is not self._members:
            self._members = members
            self._by_node = {each: (rank, facts) for rank, (each, facts) in enumerate(members)}
            self._shared_view = _items({
                "pool": self._pool,
                "total_nodes": len(members),
                "workers_per_node": self._slots,
                "total_accelerators": sum(len(facts.accelerators) for _, facts in members),
                "peers": [self._peer(rank, rank, each) for rank, (each, _) in enumerate(members)],
            })  # fmt: skip
        if node not in self._by_node:
            return None
        rank, facts = self._by_node[node]
        own = {
            "node": rank,
            "hostname": facts.hostname,
            "address": facts.address,
            "accelerators": len(facts.accelerators),
            "accelerator": _accelerator(facts),
        }
        return _map(5 + len(own), self._shared_view, _items(own))

    def world(self, world: World, rank: int) -> bytes:
        """For `wire.messages.Run`, for the rank of a generation."""
        each = world.ranks_per_node
        if world is not self._world:
            self._world = world
            nodes = [node for node in world.nodes for _ in range(each)]
            self._shared_world = _items({
                "generation": world.generation,
                "world_size": world.size,
                "local_world_size": each,
                "total_nodes": len(world.nodes),
                "head_addr": world.head_address,
                "head_port": world.head_port,
                "peers": [self._peer(r, r // each, node) for r, node in enumerate(nodes)],
            })  # fmt: skip
        own = {"rank": rank, "local_rank": rank % each, "node": rank // each, "is_head": rank == 0}
        return _map(7 + len(own), self._shared_world, _items(own))

    def _peer(self, rank: int, index: int, node: NodeId) -> dict[str, Any]:
        known = self._by_node.get(node)  # a rank that runs again alone may have peers that have left
        facts = None if known is None else known[1]
        return {
            "rank": rank,
            "node": index,
            "hostname": "" if facts is None else facts.hostname,
            "address": "" if facts is None else facts.address,
        }


def _items(fields: Mapping[str, object]) -> bytes:
    """A map's items without its header, so that maps can be put together from parts."""
    return b"".join(_pack(name) + _pack(value) for name, value in fields.items())


def _map(count: int, *items: bytes) -> bytes:
    return b"".join((_packer.pack_map_header(count), *items))


def _accelerator(facts: NodeFacts) -> dict[str, object] | None:
    if not facts.accelerators:
        return None
    kind, memory_gb = facts.accelerators[0]
    return {"type": kind, "count": len(facts.accelerators), "memory_gb": memory_gb}


_packer = msgpack.Packer(autoreset=True)
_pack = _packer.pack
