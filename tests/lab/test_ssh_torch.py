"""torch.distributed across hosts: the group is there before the user's first line, and the gradients meet."""

from __future__ import annotations

import sys

import pytest

from outrider import Image, Pool, compute, instance_info, plugins

pytestmark = pytest.mark.anyio
HERE = Image(python=sys.executable)  # this machine's torch, at the same path


@compute
def trained() -> tuple[int, int, str, list[float]]:
    """One step of a model that starts the same everywhere, on other data each; returns its weights."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    info = instance_info()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.full((4, 2), float(info.rank + 1))
    model(data).sum().backward()
    optimizer.step()
    return info.rank, info.world_size, info.hostname, [float(w) for w in model.module.weight.flatten()]


@pytest.mark.nightly  # two ranks of each of two hosts, in tests/frameworks, are tried for each change
@pytest.mark.parametrize(("count", "per_node"), [(4, 1), (2, 2)])
async def test_the_ranks_of_several_hosts_train_one_model(hosts, ssh, count, per_node):
    pytest.importorskip("torch")
    made = hosts(count)
    torch = plugins.torch(backend="gloo", ranks_per_node=per_node)
    async with Pool(provider=ssh(made), nodes=count, image=HERE, plugins=[torch], console="silent") as pool:
        results = await pool.broadcast(trained())
    assert [(rank, size) for rank, size, _, _ in results] == [(rank, 4) for rank in range(4)]
    assert {name for _, _, name, _ in results} == {host.name for host in made}
    weights = [weight for _, _, _, weight in results]
    assert all(weight == pytest.approx(weights[0]) for weight in weights)
