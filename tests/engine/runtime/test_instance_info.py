"""What a task knows of where it runs."""

import json
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import Accelerator, InstanceInfo, Peer, instance_info
from outrider.engine.node import context

FACTS: dict[str, Any] = {
    "pool": "trainers",
    "job": 7,
    "node": 1,
    "total_nodes": 2,
    "worker": 0,
    "workers_per_node": 3,
    "rank": 2,
    "world_size": 4,
    "local_rank": 0,
    "local_world_size": 2,
    "is_head": False,
    "head_addr": "10.0.0.1",
    "head_port": 29500,
    "accelerators": 8,
    "total_accelerators": 16,
    "accelerator": {"type": "A100", "count": 8, "memory_gb": 80.0},
    "peers": [
        {"rank": rank, "node": rank // 2, "hostname": f"h{rank // 2}", "address": f"10.0.0.{rank // 2}", "port": port}
        for rank, port in enumerate((29500, 29501, 0, 29503))
    ],
    "hostname": "h1",
    "address": "10.0.0.1",
    "generation": 3,
    "attempt": 2,
}


@pytest.fixture
def task() -> Iterator[None]:
    context.enter(context.TaskContext(11, 7, 2, FACTS), alone=True)
    yield
    context.leave()


def check(info: InstanceInfo) -> None:
    assert (info.pool, info.job, info.generation, info.attempt) == ("trainers", 7, 3, 2)
    assert (info.rank, info.world_size, info.local_rank, info.local_world_size) == (2, 4, 0, 2)
    assert info.accelerator == Accelerator("A100", 8, 80)
    assert info.peers[3] == Peer(rank=3, node=1, hostname="h1", address="10.0.0.1", port=29503)


@pytest.mark.usefixtures("task")
def test_a_task_sees_its_place_in_the_world() -> None:
    check(instance_info())


@pytest.mark.usefixtures("task")
def test_threads_of_a_task_see_the_same() -> None:
    seen: list[InstanceInfo] = []
    thread = threading.Thread(target=lambda: seen.append(instance_info()))
    thread.start()
    thread.join()
    check(seen[0])


def test_processes_that_a_task_starts_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTE_POOL", json.dumps(FACTS))
    check(instance_info())


def test_outside_a_pool_it_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTE_POOL", raising=False)
    info = instance_info()

    assert (info.rank, info.world_size, info.is_head, info.total_nodes) == (0, 1, True, 1)
    assert (info.pool, info.generation, info.accelerator, info.head_port) == ("", 0, None, 0)
    assert info.peers == (Peer(0, 0, socket.gethostname(), "127.0.0.1"),)


def test_it_is_immutable_and_picklable() -> None:
    info = instance_info()
    with pytest.raises(AttributeError):
        info.rank = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(info)) == info
