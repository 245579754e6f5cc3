"""Places that a rank can have, without any pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outrider import InstanceInfo, Peer, instance_info

Place = Callable[..., InstanceInfo]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """A rank's view of a broadcast: ``nodes`` hosts, ``each`` ranks and ``gpus`` devices on every one of them.

    ``shared``: all nodes are on one host. ``address``: of node n, with n in it.
    """
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM"):
        monkeypatch.delenv(name, raising=False)

    def made(
        rank: int, *, nodes: int = 2, each: int = 1, gpus: int = 0, shared: bool = False, address: str = "10.0.0.{}"
    ) -> InstanceInfo:
        peers = tuple(
            Peer(r, r // each, "one" if shared else f"host{r // each}", address.format(r // each), 29500 + r)
            for r in range(nodes * each)
        )
        return replace(
            instance_info(),
            pool="p",
            job=7,
            node=rank // each,
            total_nodes=nodes,
            rank=rank,
            world_size=nodes * each,
            local_rank=rank % each,
            local_world_size=each,
            is_head=rank == 0,
            head_addr=peers[0].address,
            head_port=29500,
            accelerators=gpus,
            total_accelerators=gpus * nodes,
            peers=peers,
            hostname=peers[rank].hostname,
            generation=1,
        )

    return made
