"""The training of 02_digits_ddp.py on four spot instances of AWS: one that is taken costs an epoch, and none is left.

It needs credentials as any AWS client finds them, and costs some cents; see docs/providers/aws.md. Run it with
the minor version of Python that the image below has. With the variable AWS_ENDPOINT_URL it runs on a cloud of your own,
such as `outrider.testing.EC2`.
"""

import sys
import time

import anyio
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from outrider import AWS, BootstrapError, Image, Pool, compute, instance_info, plugins, shard, should_stop, stdout

EPOCHS, BATCH = 100, 64
# AWS's own image with PyTorch in place: there is nothing to install. It is made for GPUs, and needs none.
PYTORCH = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04/latest/ami-id"

Array = NDArray[np.float32]
Labels = NDArray[np.int64]


@compute
@stdout(only="head")
def train(begin: int, state: bytes, scans: Array, labels: Labels, held_out: Array) -> tuple[int, bytes, Labels]:
    """From epoch ``begin`` to the last; or, when a machine of ours will be taken, to the end of this one.

    Returns how many epochs are done, the state to go on from, and the digits seen in the held-out scans.
    """
    import pickle

    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    if state:
        weights, moments = pickle.loads(state)
        layers.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    done = begin
    for epoch in range(begin, EPOCHS):
        x, y = shard(scans, labels, shuffle=True, epoch=epoch, drop_last=True)
        for batch in torch.arange(len(x)).split(BATCH // instance_info().world_size):
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        done = epoch + 1
        if done % 5 == 0:
            print(f"epoch {done}: loss {loss.item():.4f}")
        if should_stop(everywhere=True):  # on every rank after the same epoch
            break
    state = pickle.dumps((layers.state_dict(), optimizer.state_dict()))  # the client passes it on, and needs no torch
    with torch.no_grad():
        return done, state, layers(torch.from_numpy(held_out)).argmax(1).numpy()


async def main() -> None:
    scans, labels = load_digits(return_X_y=True)
    scans = (scans / 16).astype(np.float32)
    x, held_out, y, truth = train_test_split(scans, labels, test_size=0.2, stratify=labels, random_state=0)

    began, done, state, stretches = time.perf_counter(), 0, b"", 0
    pool = Pool(
        provider=AWS(ami=PYTORCH),
        nodes=4,
        vcpus=2,
        memory_gb=4,
        allocation="spot",
        image=Image(python="/opt/pytorch/bin/python"),
        plugins=[plugins.torch()],
    )
    async with pool:
        while done < EPOCHS:
            by_rank = await pool.broadcast(train(done, state, x, y, held_out))
            done, state, predicted = by_rank[0]
            stretches += 1
            accuracy = float((predicted == truth).mean())
            print(f"stretch {stretches} ends after epoch {done}: {accuracy:.2%} of {len(truth)} held-out scans right")
            if not all(np.array_equal(predicted, others) for _, _, others in by_rank):
                sys.exit("the ranks disagree: they did not train one model")
    took = time.perf_counter() - began
    print(f"four spot instances: {accuracy:.2%} in {took:.0f} s with start and end")
    if accuracy < 0.95:
        sys.exit("expected at least 95 %")


if __name__ == "__main__":
    try:
        anyio.run(main)
    except BootstrapError as error:
        if error.phase == "python":  # the machines' is of another minor version, and functions cross as bytecode
            sys.exit(f"{error}\nRun this example with the Python that its image has, as the error says.")
        raise
