"""`InstanceInfo`: where in its pool a task runs, and with which other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from .accelerators import Accelerator


@dataclass(frozen=True, slots=True)
class Peer:
    """One rank of the generation, and where it is."""

    rank: int
    node: int
    hostname: str
    address: str
    port: int = 0  # free there for this generation if a plugin asked for it; the head's always; otherwise 0


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """One rank's immutable view of its generation, the same for all ranks but for their own place.

    A broadcast has a rank per node (or per device, if a plugin says so). Any other task is a world of its own, rank 0
    of 1, and so is code outside a pool, which the defaults describe.
    """

    pool: str = ""  # its name; "" outside
    job: int = 0
    node: int = 0  # 0 .. total_nodes - 1
    total_nodes: int = 1
    worker: int = 0  # the task slot of the node
    workers_per_node: int = 1
    rank: int = 0  # 0 .. world_size - 1
    world_size: int = 1
    local_rank: int = 0  # among the ranks on this node
    local_world_size: int = 1
    is_head: bool = True  # rank 0
    head_addr: str = "127.0.0.1"  # the address by which other ranks reach rank 0
    head_port: int = 0  # a TCP port that is free there, for this generation; 0 outside a pool
    accelerators: int = 0  # on this node
    total_accelerators: int = 0
    accelerator: Accelerator | None = None  # type and memory; None without any
    peers: tuple[Peer, ...] = ()  # all ranks, by rank
    hostname: str = ""
    generation: int = 0  # 1, 2, ...: run of the broadcast; 0 outside one
    attempt: int = 1  # 1, 2, ...: attempt of the task
