"""A training that loses a machine and goes on: torch DDP with checkpoints, against the same one left in peace."""

import os
import signal
import sys
import tempfile

import anyio
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from outrider import Local, Pool, checkpoint, compute, instance_info, plugins, shard, stdout

EPOCHS, BATCH, LOST_AFTER = 20, 64, 12

Array = NDArray[np.float32]
Labels = NDArray[np.int64]


@compute
@stdout(only="head")
def train(run: str, scans: Array, labels: Labels, held_out: Array, disturbed: bool) -> tuple[int, list[float], Labels]:
    """The epoch that the last generation began with, the loss of every epoch, and the digits seen in the end."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    info = instance_info()
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []

    saved = checkpoint(run, every=5, keep=2)
    start, state = saved.load()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
        print(f"generation {info.generation} goes on after epoch {start}")

    for epoch in range(start, EPOCHS):
        x, y = shard(scans, labels, shuffle=True, epoch=epoch, drop_last=True)
        seen = torch.zeros(2)
        for batch in torch.arange(len(x)).split(BATCH // info.world_size):
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += torch.tensor([loss.item() * len(batch), len(batch)])
        dist.all_reduce(seen)
        losses.append(float(seen[0] / seen[1]))
        done = epoch + 1
        saved.save(done, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses})
        if disturbed and info.generation == 1 and done == LOST_AFTER:
            saved.wait()  # the same picture at every run; otherwise nobody has to
            if info.is_head:
                os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)  # the machine is gone, with all that it held
    with torch.no_grad():
        return start, losses, model(torch.from_numpy(held_out)).argmax(1).numpy()


async def main() -> None:
    scans, labels = load_digits(return_X_y=True)
    scans = (scans / 16).astype(np.float32)
    x, held_out, y, truth = train_test_split(scans, labels, test_size=0.2, stratify=labels, random_state=0)

    with tempfile.TemporaryDirectory() as folder:  # with machines elsewhere: a folder they share, or "s3://..."
        async with Pool(provider=Local(), nodes=4, plugins=[plugins.torch()], checkpoints=folder) as pool:
            (_, peace, calmly), *_ = await pool.broadcast(train("peace", x, y, held_out, disturbed=False))
            (start, losses, seen), *others = await pool.broadcast(train("lost", x, y, held_out, disturbed=True))

    apart = max(abs(a - b) for a, b in zip(losses, peace, strict=True))
    print(f"lost after epoch {LOST_AFTER}, went on after epoch {start}: {LOST_AFTER - start} epochs were done twice")
    print(f"undisturbed: {float((calmly == truth).mean()):.2%} of {len(truth)} held-out scans right")
    print(f"disturbed:   {float((seen == truth).mean()):.2%}, no epoch's loss is further apart than {apart:.0e}")
    if not all(np.array_equal(seen, theirs) for _, _, theirs in others):
        sys.exit("the ranks disagree: they did not train one model")
    if apart > 1e-3 or start != 10:
        sys.exit("expected the training to go on after epoch 10 as if nothing had happened")


if __name__ == "__main__":
    anyio.run(main)
