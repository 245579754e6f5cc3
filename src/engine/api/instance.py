"""`InstanceInfo`: the place of a task in its pool, and the other ranks of its broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from .accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank of the generation, and where it runs.

    Attributes:
        rank: The rank.
        node: The number of its node.
        hostname: The name of its host.
        address: The address by which other ranks reach it.
        port: A free port on its host for this generation, if a plugin needs one; the head always has one. Otherwise 0.
    """

    rank: int
    node: int
    hostname: str
    address: str
    # a free port on the rank's host for this generation, if a plugin requested one or this is the head; else 0
    port: int = 0


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One rank's immutable view of its generation, equal for all ranks except for their own place.

    A broadcast has a rank per node, or per device if a plugin decides so. Any other task is rank 0 of a world of size
    1. The defaults describe code outside a pool, which is also rank 0 of 1.

    Attributes:
        pool: The name of the pool; empty outside a pool.
        job: The number of the job.
        node: The number of this node, from 0.
        total_nodes: The number of nodes.
        worker: The task slot of the node, from 0.
        workers_per_node: The number of task slots of a node.
        rank: This rank among all ranks, from 0.
        world_size: The number of ranks.
        local_rank: This rank among the ranks of this node, from 0.
        local_world_size: The number of ranks of this node.
        is_head: Whether this is rank 0.
        head_addr: The address by which other ranks reach rank 0.
        head_port: A TCP port that is free at rank 0, for this generation; 0 outside a pool.
        accelerators: The number of devices of this node.
        total_accelerators: The number of devices of all nodes.
        accelerator: The type and memory of the devices; None without any.
        peers: The place of every rank, by rank. For a task outside a broadcast: all ready nodes or, in a pool of more
            than 1,024 nodes, only the task itself.
        hostname: The name of this host.
        generation: The number of the broadcast's generation, from 1; 0 outside a broadcast.
        attempt: The number of the task's attempt, from 1.
    """

    pool: str = ""  # name of the pool; empty outside a pool
    job: int = 0
    node: int = 0  # 0 .. total_nodes - 1
    total_nodes: int = 1
    worker: int = 0  # index of the node's task slot
    workers_per_node: int = 1
    rank: int = 0  # 0 .. world_size - 1
    world_size: int = 1
    local_rank: int = 0  # index among the ranks on this node
    local_world_size: int = 1
    is_head: bool = True  # True for rank 0
    head_addr: str = "127.0.0.1"  # the address by which other ranks reach rank 0
    head_port: int = 0  # a TCP port that is free on the head for this generation; 0 outside a pool
    accelerators: int = 0  # number of devices on this node
    total_accelerators: int = 0
    accelerator: Accelerator | None = None  # type and memory; None without any
    peers: tuple[Peer, ...] = ()  # all ranks, by rank
    hostname: str = ""
    generation: int = 0  # 1, 2, ...: number of the broadcast's generation; 0 outside a broadcast
    attempt: int = 1  # 1, 2, ...: number of the task's attempt
