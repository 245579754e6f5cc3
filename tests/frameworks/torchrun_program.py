"""A program for `torchrun`, which knows nothing of Outrider: it fits a plane by DDP and prints the last loss."""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(steps: int) -> float:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 256).reshape(64, 4)[dist.get_rank() :: dist.get_world_size()]
    for _ in range(steps):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    assert dist.get_rank() == int(os.environ["RANK"])
    last = train(options.steps)
    if dist.get_rank() == 0:
        print(f"loss {last:.9f}")
    gc.collect()  # of DDP's model, a cycle: after its group, at the exit, that may abort it (torch issue 190489)
    dist.destroy_process_group()
