"""Real distributed training: torch DDP on four nodes over scikit-learn's digits, against one process alone."""

import sys
import time
from pathlib import Path

import anyio
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from outrider import Local, Pool, compute, instance_info, plugins, shard, stdout

PICTURE = Path(__file__).parent / "out" / "02_digits_ddp.png"
EPOCHS, BATCH = 20, 64

Array = NDArray[np.float32]
Labels = NDArray[np.int64]


@compute
@stdout(only="head")
def train(scans: Array, labels: Labels, held_out: Array) -> tuple[list[float], Labels]:
    """The mean loss of each epoch, and the digits seen in the held-out scans."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks = instance_info().world_size
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(EPOCHS):
        # Every rank gets every n-th scan of one permutation: batch k of all ranks together is batch k of one process.
        x, y = shard(scans, labels, shuffle=True, epoch=epoch, drop_last=True)
        seen = torch.zeros(2)
        for batch in torch.arange(len(x)).split(BATCH // ranks):
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += torch.tensor([loss.item() * len(batch), len(batch)])
        if dist.is_initialized():
            dist.all_reduce(seen)
        losses.append(float(seen[0] / seen[1]))
        print(f"epoch {epoch + 1:2}  loss {losses[-1]:.4f}")
    with torch.no_grad():
        return losses, model(torch.from_numpy(held_out)).argmax(1).numpy()


async def main() -> None:
    scans, labels = load_digits(return_X_y=True)
    scans = (scans / 16).astype(np.float32)
    x, held_out, y, truth = train_test_split(scans, labels, test_size=0.2, stratify=labels, random_state=0)

    began = time.perf_counter()
    async with Pool(provider=Local(), nodes=4, plugins=[plugins.torch()]) as pool:
        by_rank = await pool.broadcast(train(x, y, held_out))
    took = time.perf_counter() - began
    print("the same in one process:")
    alone_losses, alone_predicted = train.local(x, y, held_out)

    losses, predicted = by_rank[0]
    together, alone = float((predicted == truth).mean()), float((alone_predicted == truth).mean())
    draw(losses, alone_losses, truth, predicted, together)
    print(f"four nodes:  {together:.2%} of {len(truth)} held-out scans right, in {took:.1f} s with start and end")
    print(f"one process: {alone:.2%}")
    print(f"picture:     {PICTURE}")
    if not all(np.array_equal(predicted, others) for _, others in by_rank):
        sys.exit("the ranks disagree: they did not train one model")
    if together < 0.95 or abs(together - alone) > 0.02:
        sys.exit("expected at least 95 %, and within 2 points of one process")


def draw(losses: list[float], alone: list[float], truth: Labels, predicted: Labels, accuracy: float) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from sklearn.metrics import ConfusionMatrixDisplay

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    epochs = range(1, len(losses) + 1)
    left.plot(epochs, losses, label="four nodes, DDP", linewidth=2)
    left.plot(epochs, alone, label="one process", linestyle="--", color="black", linewidth=1.2)
    left.set(title="Training loss", xlabel="epoch", ylabel="mean cross-entropy", yscale="log")
    left.set_xticks([1, 5, 10, 15, 20])
    left.legend(frameon=False)
    left.grid(alpha=0.3)
    matrix = ConfusionMatrixDisplay.from_predictions(truth, predicted, ax=right, cmap="Blues", colorbar=False)
    for cell in matrix.text_.ravel():
        cell.set_visible(cell.get_text() != "0")
    right.set(title=f"Held-out fifth: {accuracy:.1%} right", xlabel="seen", ylabel="written")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    anyio.run(main)
