"""The cost of states in memory: a DDP training over four local nodes whose ranks save 50 MB after each step.

Blocks of steps with ``checkpoint(every=1, memory=2)``, blocks without any `save`, and blocks whose ranks only copy
their state into memory that they have already take turns in one broadcast, with one process group. The ratio is of the
rates of two blocks of one round: 1.03 says that saving takes 3 % of a step's time. What a bare copy takes, nothing that
keeps a state while the training goes on can do without.

What is fair on few cores: a step takes 0.3 s where each rank has a core, and in use it has a machine. Here four ranks,
four nodes and the client may share two cores, so that a step takes twice as long, and so does a save: all ranks save at
the same moment. The share of the step is what a core for each rank would have. There are two kinds of steps:

- Computing ones take each rank 0.3 s of a processor. All cores are busy, so that each millisecond counts which the
  ranks, the nodes and the client work for a save, also beside the training.
- Waiting ones are as with an accelerator that computes while the processors have nothing to do. Only the time counts
  for which `save` holds up the training.

Both end with a real step of a small DDP model, in which the ranks wait for each other.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import anyio

from outrider import Local, Pool, checkpoint, compute, plugins

from .figures import Bar, Figure, summarize

RANKS = 4
STEP_S = 0.3  # where each rank has a core
STEPS = 8  # of a block
ROUNDS = 5
STATE_BYTES = 50_000_000
TENSORS = 180  # as a model of 4 million parameters has in 60 tensors, and its optimizer twice as many


KINDS = ("saves", "copies", "neither")


def rates(computing: bool) -> dict[str, list[float]]:
    """Return the steps per second of each block, by its kind."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    state = {f"tensor-{number}": torch.randn(STATE_BYTES // TENSORS // 4) for number in range(TENSORS)}
    copies = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    saving = checkpoint("states", every=1, memory=2, durable=10**9)
    done, _ = saving.load()
    matrix = torch.randn(256, 256)
    products = _products(matrix) if computing else 0
    waits_s = 0.0 if computing else STEP_S * max(1.0, RANKS / len(os.sched_getaffinity(0)))

    def block(kind: str) -> float:
        nonlocal done
        dist.barrier()
        began = time.perf_counter()
        for _ in range(STEPS):
            for _ in range(products):
                torch.mm(matrix, matrix)
            time.sleep(waits_s)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            if kind == "saves":
                saving.save(done, {"model": model.state_dict(), **state})
            elif kind == "copies":
                for name, tensor in state.items():
                    copies[name].copy_(tensor)
        dist.barrier()
        took_s = time.perf_counter() - began
        time.sleep(0.3)  # for what is under way of the last save: that of each other one is in the step behind it
        return STEPS / took_s

    block("saves"), block("copies")  # which map the memory
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        for turn in range(len(KINDS)):
            kind = KINDS[(number + turn) % len(KINDS)]
            found[kind].append(block(kind))
    return found


def _products(matrix: Any) -> int:
    """Return how many products of the matrix take `STEP_S` of a processor; the same on all ranks."""
    import torch
    import torch.distributed as dist

    tries = 200
    began = time.thread_time()
    for _ in range(tries):
        torch.mm(matrix, matrix)
    count = torch.tensor(tries * STEP_S / (time.thread_time() - began))
    dist.all_reduce(count)
    return max(1, int(count / RANKS))


def states() -> list[Figure]:
    """states: each kind of steps is a broadcast of its own, in one pool."""
    return anyio.run(_measured)


async def _measured() -> list[Figure]:
    figures: list[Figure] = []
    bar = Bar("ratio", "at most", 1.03)
    with tempfile.TemporaryDirectory() as kept:
        torch = [plugins.torch()]
        async with Pool(provider=Local(), nodes=RANKS, plugins=torch, checkpoints=kept, console="silent") as pool:
            for kind in ("computing", "waiting"):
                found = (await pool.broadcast(compute(rates)(kind == "computing")))[0]
                saves, copies, neither = (found[each] for each in KINDS)
                of = f"DDP, {RANKS} {kind} ranks"
                figures += [
                    _figure(f"states-{kind}", f"{of} with memory=2, beside none", saves, neither, bar=bar),
                    _figure(f"states-{kind}-copy", f"{of} with memory=2, beside a bare copy", saves, copies),
                    _figure(f"copies-{kind}", f"{of} with a bare copy, beside none", copies, neither),
                ]
    return figures


def _figure(key: str, name: str, ours: list[float], theirs: list[float], *, bar: Bar | None = None) -> Figure:
    return summarize(key, name, "steps/s", ours, theirs, ratio="theirs/ours", bar=bar)
