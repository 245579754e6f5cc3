"""`InstanceInfo`: where in its pool a task runs, and with whom."""

from __future__ import annotations

from dataclasses import dataclass

from .accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank of the generation, and where it is."""

    rank: int
    node: int
    hostname: str
    address: str
    port: int = 0  # free there for this generation, where a plugin asked for it; the head's always; else 0


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One immutable view of the world: every rank of a generation sees the same one, from its own place.

    A broadcast has a rank per node (or per device, where a plugin says so). Anything else is a world of its own: rank
    0 of 1. Outside a pool it is that too.
    """

    pool: str  # its name; "" outside
    job: int
    node: int  # 0 .. total_nodes - 1
    total_nodes: int
    worker: int  # which task slot of the node
    workers_per_node: int
    rank: int  # 0 .. world_size - 1
    world_size: int
    local_rank: int  # among the ranks on this node
    local_world_size: int
    is_head: bool  # rank 0
    head_addr: str  # where rank 0 is reached by the others
    head_port: int  # a TCP port that is free there, for this generation; 0 outside a pool
    accelerators: int  # on this node
    total_accelerators: int
    accelerator: Accelerator | None  # what they are; None without
    peers: tuple[Peer, ...]  # every rank's place, by rank
    hostname: str
    generation: int  # 1, 2, ...: which run of the broadcast this is; 0 without one
    attempt: int  # 1, 2, ...: which attempt of the task this is
