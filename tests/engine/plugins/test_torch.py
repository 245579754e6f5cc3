"""The torch plugin: its variables, and process groups of real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from outrider import InstanceInfo, SpecError, plugins
from outrider.actors.interfaces import NodeFacts
from outrider.engine.node.freeports import FreePorts
from outrider.engine.plugins.torch import _device, refuse_another

Place = Callable[..., InstanceInfo]
World = Callable[[int], list[dict[str, Any]]]

# A rank by hand: the context that the executor would enter, and the program that it would call.
RANK = """
import json, os, sys, time
from datetime import timedelta
from outrider import compute, plugins
from outrider.engine.node import context
from outrider.engine.node.environ import RankVariables
from outrider.engine.serialization.program import build
import pickle

ranks = RankVariables()

def run(body, info, **options):
    context.enter(context.TaskContext(1, 1, 1, info), alone=True)
    ranks.set(info)
    try:
        program = pickle.loads(build(compute(body), [plugins.torch(**options)]))
        return program(lambda: ((), {}))
    finally:
        ranks.clear()
        context.leave()

info = json.loads(sys.argv[1])
"""

ALL_REDUCE = (
    RANK
    + """
def body():
    import torch, torch.distributed as dist
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
             "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "TORCH_DIST_INIT_BARRIER"]
    return [value.item(), dist.get_backend(), {name: os.environ.get(name) for name in names}]

first = run(body, info)
info["head_port"] = info["second_port"]
second = run(body, info)
import torch.distributed as dist
print(json.dumps([first, second, dist.is_initialized(), "RANK" in os.environ]))
"""
)


@pytest.fixture
def world() -> Iterator[World]:
    """What ranks are told, of a world of so many. Its ports stay taken until the test ends, as a node keeps them."""
    free = FreePorts()
    yield lambda size: told(size, free.open())
    free.close()


def told(size: int, ports: Sequence[int]) -> list[dict[str, Any]]:
    peers = [
        {"rank": rank, "node": rank, "hostname": "here", "address": "127.0.0.1", "port": 0} for rank in range(size)
    ]
    shared = {
        **dict.fromkeys(("job", "worker", "local_rank", "accelerators", "total_accelerators"), 0),
        **dict.fromkeys(("workers_per_node", "local_world_size", "attempt", "generation"), 1),
        "pool": "p",
        "total_nodes": size,
        "world_size": size,
        "head_addr": "127.0.0.1",
        "head_port": ports[0],
        "second_port": ports[1],
        "accelerator": None,
        "peers": peers,
        "hostname": "here",
    }
    return [{**shared, "rank": rank, "node": rank, "is_head": rank == 0} for rank in range(size)]


def start(code: str, info: dict[str, Any]) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "RANK")}
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(info)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean,
    )


def test_two_ranks_reduce_twice_in_the_same_processes(world: World) -> None:
    infos = world(2)
    ranks = [start(ALL_REDUCE, info) for info in infos]
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        first, second, initialized, environment = json.loads(out)
        assert (first[0], second[0]) == (3, 3)
        assert first[1] == "gloo"
        assert first[2] == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(infos[0]["head_port"]),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TORCH_DIST_INIT_BARRIER": None,
        }
        assert second[2]["MASTER_PORT"] == str(infos[0]["second_port"])
        assert (initialized, environment) == (False, False)


LOSING = (
    RANK
    + """
def body():
    import signal, torch, torch.distributed as dist
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), getattr(signal, HOW))
    pending = dist.all_reduce(torch.ones(1 << 20), async_op=True) if ASYNC else None
    dist.all_reduce(torch.ones(1 << 20))

began = time.monotonic()
try:
    run(body, info, timeout=60)
except Exception as error:
    import torch.distributed as dist
    print(json.dumps([type(error).__name__, time.monotonic() - began, dist.is_initialized()]), flush=True)
os._exit(0)
"""
)


@pytest.mark.parametrize("pending", [False, True], ids=["plain", "with a pending collective"])
def test_a_rank_whose_peer_dies_gets_the_error_and_is_not_held_up(world: World, pending: bool) -> None:
    ranks = [start(LOSING.replace("HOW", "'SIGKILL'").replace("ASYNC", str(pending)), info) for info in world(2)]
    out, err = ranks[0].communicate(timeout=120)
    ranks[1].communicate(timeout=120)

    assert out, err
    kind, _, initialized = json.loads(out)
    assert "Error" in kind
    assert not initialized


SELF = (
    RANK
    + """
def body():
    from datetime import timedelta
    import torch, torch.distributed as dist
    from torch.distributed import init_process_group
    made = dist.group.WORLD
    init_process_group("gloo", rank=dist.get_rank(), world_size=2, timeout=timedelta(seconds=70))
    dist.distributed_c10d.init_process_group(init_method="env://")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    same = dist.group.WORLD is made
    timeout = made._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    try:
        init_process_group("mpi")
    except Exception as error:
        refused = str(error)
    dist.destroy_process_group()
    with_a_store = dict(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group(**with_a_store)  # there is none any more: it is the function's own
    return value.item(), same, timeout, refused, dist.get_world_size()

print(json.dumps(run(body, info)))
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # outside: torch's own
dist.destroy_process_group()
"""
)


def test_a_function_that_initializes_the_group_itself_finds_it_there(world: World) -> None:
    for rank, process in enumerate([start(SELF, info) for info in world(2)]):
        out, err = process.communicate(timeout=120)
        value, same, timeout, refused, size = json.loads(out or "[]" + err)
        assert (value, same, timeout, size) == (3.0, True, 70.0, 1)
        assert refused == (
            "init_process_group(backend='mpi') asks for another group than the one that plugins.torch() has made, of "
            f"rank {rank} of 2 with gloo: use plugins.torch(init=False), with which the function makes its own."
        )
        assert process.returncode == 0, err


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        ({}, "gloo"),
        ({"backend": None, "rank": -1, "world_size": -1}, "gloo"),
        ({"backend": "GLOO", "rank": 1, "world_size": 2, "init_method": "tcp://10.0.0.1:29500"}, "gloo"),
        ({"backend": "nccl"}, "cuda:nccl,cpu:gloo"),
        ({"backend": "cuda:nccl,cpu:gloo"}, "cuda:nccl,cpu:gloo"),
    ],
)
def test_what_asks_for_the_group_that_is_there_is_content(asked: dict[str, Any], backend: str) -> None:
    refuse_another(asked, backend, rank=1, size=2)


@pytest.mark.parametrize(
    "asked",
    [{"backend": "nccl"}, {"rank": 0}, {"world_size": 1}, {"pg_options": object()}],
    ids=lambda asked: next(iter(asked)),
)
def test_what_asks_for_another_group_is_told_what_to_do(asked: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"another group .* rank 1 of 2 with gloo: use plugins\.torch\(init=False\)"):
        refuse_another(asked, "gloo", rank=1, size=2)


AGAIN = (
    RANK
    + """
import torch.distributed as dist

def body():
    import torch
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    return value.item()

if info["rank"] == 1:  # what a generation leaves whose rank 0 dies while the group is set up
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=1, world_size=2, timeout=timedelta(seconds=0.2))
    except RuntimeError:
        pass
    else:
        sys.exit("a group without rank 0")
print(run(body, info, timeout=60))
"""
)


def test_a_process_whose_last_set_up_failed_finds_the_others(world: World) -> None:
    for process in [start(AGAIN, info) for info in world(2)]:
        out, err = process.communicate(timeout=120)
        assert out == "3.0\n", err


BARRIER = (
    RANK
    + """
import torch.distributed as dist
from unittest import mock

def body():
    import torch
    group = dist.new_group([0]) if info["rank"] == 0 else None  # rank 1 has no part in it
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    return value.item(), torch.get_num_threads()

import torch
torch.set_num_threads(2)
failing = mock.Mock(side_effect=RuntimeError("the store has gone"))
with mock.patch("torch.distributed.distributed_c10d._store_based_barrier", failing):
    try:
        run(body, info, timeout=60)
    except RuntimeError as error:
        print(json.dumps([str(error), dist.is_initialized(), torch.get_num_threads()]), flush=True)
info["head_port"] = info["second_port"]
print(json.dumps(run(body, info, timeout=60)), torch.get_num_threads())
"""
)


def test_a_group_whose_barrier_failed_is_left(world: World) -> None:
    for process in [start(BARRIER, info) for info in world(2)]:
        out, err = process.communicate(timeout=120)
        assert out.splitlines() == ['["the store has gone", false, 2]', "[3.0, 1] 2"], err


ALONE = (
    RANK
    + """
def body():
    import torch, torch.distributed as dist
    value = torch.ones(1)
    dist.all_reduce(value)
    if FAIL:
        raise ValueError("mine")
    return [dist.get_world_size(), value.item()]

for FAIL in (True, False):
    try:
        print(json.dumps(run(body, info)))
    except ValueError as error:
        print(json.dumps(str(error)))
"""
)


def test_a_task_of_its_own_is_a_group_of_one_also_after_an_error(world: World) -> None:
    (info,) = world(1)
    out, err = start(ALONE, info).communicate(timeout=120)

    assert [json.loads(line) for line in out.splitlines()] == ["mine", [1, 1.0]], err


def test_ranks_per_node_is_one_per_gpu_and_at_least_one() -> None:
    none = NodeFacts("h", "127.0.0.1", ())
    four = NodeFacts("h", "127.0.0.1", (), (("A100", 80.0),) * 4)
    assert [plugins.torch().ranks_per_node(facts) for facts in (none, four)] == [1, 4]
    assert plugins.torch(ranks_per_node=3).ranks_per_node(four) == 3


def test_variables_follow_the_generations_view(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    info = place(5, nodes=4, each=2)
    assert plugins.torch().env(info) == {"OMP_NUM_THREADS": "1"}  # the node sets those of a rank
    assert "OMP_NUM_THREADS" not in plugins.torch().env(place(1))  # a host for itself
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert plugins.torch().env(info)["OMP_NUM_THREADS"] == "6"


def test_a_task_of_its_own_has_the_variables_of_a_world_of_one(place: Place) -> None:
    assert plugins.torch().env(replace(place(0, nodes=1), generation=0)) == {
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
    }


def test_gloo_is_told_the_interface_by_which_the_others_reach_this_rank(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "GLOO_SOCKET_IFNAME" not in plugins.torch().env(place(1))  # 10.0.0.1 is not ours
    here = place(1, address="127.0.0.1")
    assert plugins.torch().env(here)["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert plugins.torch().env(here)["GLOO_SOCKET_IFNAME"] == "eth7"


class Cuda:
    """Of torch, what says which GPUs there are."""

    def __init__(self, visible: int) -> None:
        self.cuda, self._visible = self, visible

    def is_available(self) -> bool:
        return self._visible > 0

    def device_count(self) -> int:
        return self._visible


def test_each_rank_has_a_device_of_its_own(place: Place) -> None:
    def chosen(visible: int, each: int, gpus: int) -> list[int | None]:
        return [_device(Cuda(visible), place(rank, each=each, gpus=gpus)) for rank in range(each)]

    assert chosen(visible=4, each=4, gpus=4) == [0, 1, 2, 3]
    assert chosen(visible=8, each=2, gpus=8) == [0, 1]
    assert chosen(visible=1, each=4, gpus=4) == [0, 0, 0, 0]  # each sees only its own
    assert chosen(visible=1, each=2, gpus=1) == [None, None]  # nccl cannot share one: gloo
    assert chosen(visible=0, each=2, gpus=0) == [None, None]


def test_tasks_in_several_slots_take_the_devices_in_turn(place: Place) -> None:
    alone = replace(place(0, nodes=1, gpus=2), workers_per_node=3)
    assert [_device(Cuda(2), replace(alone, worker=slot)) for slot in range(3)] == [0, 1, 0]


def test_invalid_options_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"ranks_per_node": 0}, {"ranks_per_node": "many"}, {"backend": 3}, {"timeout": -1}]
    wrong += [{"init": False, "backend": "gloo"}, {"init": False, "timeout": 3}]
    for options in wrong:
        with pytest.raises(SpecError, match=r"plugins\.torch: "):
            plugins.torch(**options)
