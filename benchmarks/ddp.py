"""DDP with four ranks on this computer: steps per second in a broadcast, beside the same function under torchrun."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import anyio

from outrider import Local, Pool, compute, plugins

from .figures import Bar, Figure, interleaved, summarize

RANKS = 4
PAIRS = 5
WARM_STEPS, STEPS = 50, 1_000
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")


def steps_per_s(steps: int = STEPS) -> float:
    """Train a small model where a process group is, and return the rate of the steps after those that warm up."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    began = 0.0
    for step in range(WARM_STEPS + steps):
        if step == WARM_STEPS:
            dist.barrier()
            began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.barrier()
    return steps / (time.perf_counter() - began)


def ddp(pairs: int = PAIRS) -> list[Figure]:
    """ddp: each pair starts both anew, since a process group keeps its connections for all of its life."""
    ours, theirs = rates(pairs, STEPS)
    bar = Bar("ratio", "at least", 0.98)
    return [summarize("ddp", f"DDP, {RANKS} ranks, beside torchrun", "steps/s", ours, theirs, bar=bar)]


def rates(pairs: int, steps: int) -> tuple[list[float], list[float]]:
    """Return the steps per second of each pair: ours and torchrun's."""
    return anyio.run(partial(interleaved, pairs, partial(_broadcast, steps), partial(_torchrun, steps)))


async def _broadcast(steps: int) -> float:
    async with Pool(provider=Local(), nodes=RANKS, plugins=[plugins.torch()], console="silent") as pool:
        reached = await pool.broadcast(compute(steps_per_s)(steps))
    return reached[0]


def _torchrun(steps: int) -> float:
    done = subprocess.run([*TORCHRUN, "-m", "benchmarks.ddp", str(steps)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Be a rank of torchrun's."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rate = steps_per_s(int(sys.argv[1]))
    if dist.get_rank() == 0:
        print(rate)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
