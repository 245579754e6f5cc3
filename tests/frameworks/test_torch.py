"""torch itself: DDP over nodes, and over several ranks of each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from outrider import compute, instance_info, plugins, shard

pytestmark = pytest.mark.anyio


@compute
def train(steps: int) -> dict[str, Any]:
    """Fits a line with DDP, where there is a group; every rank on its share."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    x = shard(torch.linspace(-1, 1, 64).unsqueeze(1))
    model: torch.nn.Module = torch.nn.Linear(1, 1)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        loss = (model(x) - 3 * x - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    info = instance_info()
    return {
        "weights": [round(value, 5) for parameter in model.parameters() for value in parameter.flatten().tolist()],
        "place": (info.rank, info.node, info.local_rank, info.world_size),
        "environment": {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")},
    }


@pytest.mark.parametrize(("nodes", "each"), [(4, 1), (2, 2)], ids=["4 nodes", "2 nodes x 2 ranks"])
async def test_ddp_trains_one_model_as_one_process_would(place: Any, nodes: int, each: int) -> None:
    async with place.pool(nodes, plugins.torch(ranks_per_node=each)) as pool:
        ranks = await pool.broadcast(train(20))

    alone = train.local(20)["weights"]
    assert [rank["place"] for rank in ranks] == [(r, r // each, r % each, 4) for r in range(4)]
    for r, rank in enumerate(ranks):
        assert rank["weights"] == pytest.approx(alone, abs=1e-4)
        assert rank["environment"] == {
            "RANK": str(r),
            "LOCAL_RANK": str(r % each),
            "LOCAL_WORLD_SIZE": str(each),
            "NODE_RANK": str(r // each),
        }
    assert alone == pytest.approx([3, 1], abs=0.05)


@compute
def sums(steps: int) -> Iterator[tuple[int, float]]:
    """Each value needs all ranks."""
    import torch
    import torch.distributed as dist

    for step in range(steps):
        total = torch.tensor([float(instance_info().rank + step)])
        dist.all_reduce(total)
        yield step, total.item()


async def test_ranks_that_train_together_stream_their_values(place: Any) -> None:
    async def every(values: AsyncIterator[tuple[int, float]]) -> list[tuple[int, float]]:
        return [value async for value in values]

    async with place.pool(2, plugins.torch()) as pool:
        ranks = await pool.broadcast(sums(20))
        values = await asyncio.gather(*map(every, ranks))
    assert values == [[(step, 2.0 * step + 1.0) for step in range(20)]] * 2
