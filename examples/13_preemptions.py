"""Training on machines that do not last: one of four is lost every few seconds, and the accuracy is the same."""

import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from outrider import Nodes, Pool, checkpoint, compute, instance_info, log_metrics, plugins, shard
from outrider.testing import Chaos, ChaosReport, Fault, Kill, KillDaemon, Preempt

OUT = Path(__file__).parent / "out"
EPOCHS, BATCH, EVERY = 20, 64, 20  # a checkpoint every 20 steps
PAUSE_S = 0.04  # what a step of a larger model takes longer
FAULTS: list[Fault] = [Kill(rank=0, at_step=60), KillDaemon(rank=2, at_step=70), Kill(rank=3, at_step=80)]
FAULTS += [Preempt(2, rank=0, at_step=90)]  # at steps, not times: a fast machine loses as many as a slow one

Array = NDArray[np.float32]
Labels = NDArray[np.int64]


@compute(retries=100)
def train(scans: Array, labels: Labels, held_out: Array, log: str, pause_s: float) -> Labels:
    """The digits seen in the held-out scans, as in 02_digits_ddp.py. ``log``: where rank 0 writes its steps."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks, rank, generation = dist.get_world_size(), dist.get_rank(), instance_info().generation
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    saved = checkpoint("digits", every=EVERY)
    done, state = saved.load()
    if state is not None:
        layers.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    with Path(log).open("a") as steps:
        step = 0
        for epoch in range(EPOCHS):
            x, y = shard(scans, labels, shuffle=True, epoch=epoch, drop_last=True)
            for batch in torch.arange(len(x)).split(BATCH // ranks):
                step += 1
                if step <= done:  # a generation before this one has done it
                    continue
                loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log_metrics({"loss": loss.item()}, step=step)  # a step that is done again counts once in the report
                if saved.save(step, {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}):
                    saved.wait()  # else a loss while it is written costs the interval before, too
                if rank == 0:
                    print(generation, step, file=steps, flush=True)
                time.sleep(pause_s)
    predicted: Labels = layers(torch.from_numpy(held_out)).argmax(1).numpy()
    return predicted


def lost(log: Path) -> list[int]:
    """For each generation after the first: how many steps it had to do again."""
    done = np.loadtxt(log, dtype=int, ndmin=2)
    generations = [done[done[:, 0] == number, 1] for number in np.unique(done[:, 0])]
    return [int(before.max() - after.min()) + 1 for before, after in pairwise(generations)]


async def run(data: Any, folder: Path, chaos: Chaos | None) -> tuple[float, list[int], ChaosReport | None]:
    """The accuracy, the steps that were lost, and what happened."""
    x, held_out, y, truth = data
    pool = Pool(nodes=Nodes(4, spare=1), plugins=[plugins.torch()], checkpoints=folder, chaos=chaos, console="plain")
    async with pool:
        predicted = await pool.broadcast(train(x, y, held_out, str(folder / "log"), PAUSE_S if chaos else 0.0))
    assert all(np.array_equal(predicted[0], others) for others in predicted)
    return float((predicted[0] == truth).mean()), lost(folder / "log"), pool.chaos if chaos else None


async def main() -> None:
    scans, labels = load_digits(return_X_y=True)
    scans = (scans / 16).astype(np.float32)
    data = train_test_split(scans, labels, test_size=0.2, stratify=labels, random_state=0)
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as rough:
        undisturbed, _, _ = await run(data, Path(calm), None)
        disturbed, again, report = await run(data, Path(rough), Chaos(None, faults=FAULTS))
    assert report is not None
    for suffix in ("png", "html", "json"):
        written = report.write(OUT / f"13_preemptions.{suffix}")
    print(report.summary())
    print(f"faults:      {', '.join(f'{strike.kind} of rank {strike.rank}' for strike in report.strikes)}")
    print(f"done again:  {again} steps; a checkpoint every {EVERY}")
    print(f"undisturbed: {undisturbed:.2%} of the held-out scans right; disturbed: {disturbed:.2%}")
    print(f"picture:     {written.with_suffix('.png')}; outrider report 13_preemptions --open shows the whole run")
    if max(again, default=0) > EVERY or disturbed != undisturbed or 0 not in {s.rank for s in report.strikes}:
        sys.exit("expected at most a checkpoint's steps to be lost each time, the same accuracy, and rank 0 hit once")


if __name__ == "__main__":
    anyio.run(main)
