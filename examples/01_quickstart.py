"""Four nodes on this machine, and every way to use them."""

from collections.abc import Iterator

import anyio

from outrider import Local, Pool, compute, instance_info, plugins, shard


@compute
def train(epochs: int) -> float:
    import torch
    from torch.nn.parallel import DistributedDataParallel  # the process group is already there

    x = shard(torch.linspace(-1, 1, 1000).unsqueeze(1))  # this rank's share of the data
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(epochs):
        loss = (model(x) - 3 * x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.item())


@compute
def score(number: int) -> int:
    return number**2


@compute
def rows(count: int) -> Iterator[str]:
    for row in range(count):
        yield f"row {row} from node {instance_info().node}"


async def main() -> None:
    async with Pool(provider=Local(), nodes=4, plugins=[plugins.torch()]) as pool:
        print("one node:     ", await pool.run(train(20)))
        print("all, by rank: ", await pool.broadcast(train(20)))
        print("together:     ", await pool.gather(score(3), score(4)))
        job = pool.submit(score(5))  # runs while we do something else
        print("all of a map: ", sum(await pool.map(score, range(1000))))
        async for result in pool.map(score, range(6, 9), limit=64):
            print("one by one:   ", result)
        async for row in pool.stream(rows(2)):
            print("as produced:  ", row)
        print("the job:      ", await job)


if __name__ == "__main__":
    anyio.run(main)
