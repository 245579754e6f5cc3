"""FSDP states: each rank writes its part, and another number of ranks reads them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import Local, Pool, checkpoint, compute, instance_info, plugins, shard

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_state")]

SIZES = (10, 33, 7)  # not divisible by the ranks


@compute
def train(steps: int, mesh_shape: tuple[int, ...]) -> tuple[int, int, list[Any]]:
    """(step at the start, elements of this rank's part, the whole parameters afterwards)"""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(instance_info().rank)  # what is not loaded would differ
    a, b, c = SIZES
    model = torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, c))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("replicate", "shard")[-len(mesh_shape) :])
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saving = checkpoint("fsdp")
    weights, moments = get_state_dict(model, optimizer)
    start, state = saving.load(into={"model": weights, "optimizer": moments})
    if state is not None:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        assert state["own"] == instance_info().rank % state["ranks"]
    for step in range(start + 1, start + steps + 1):
        made = torch.Generator().manual_seed(step)
        x, y = shard(torch.randn(24, a, generator=made), torch.randn(24, c, generator=made))
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights, moments = get_state_dict(model, optimizer)
        own = {"own": instance_info().rank, "ranks": instance_info().world_size}
        saving.save(step, {"model": weights, "optimizer": moments, **own})
    parameters: list[Any] = list(model.parameters())
    part = sum(parameter.to_local().numel() for parameter in parameters)
    return start, part, [parameter.full_tensor().detach().numpy() for parameter in parameters]


def alone(steps: int) -> list[Any]:
    a, b, c = SIZES
    model = torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, c))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, steps + 1):
        made = torch.Generator().manual_seed(step)
        x, y = torch.randn(24, a, generator=made), torch.randn(24, c, generator=made)
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


async def test_sharded_model_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    """2 -> 3 -> 2 replicas of 2: the parameters are those of a training that nothing disturbed."""
    root = tmp_path / "kept"
    elements = sum(a * b + b for a, b in pairwise(SIZES))
    for index, mesh_shape in enumerate([(2,), (3,), (2, 2)]):
        ranks = int(np.prod(mesh_shape))
        torch_plugin = [plugins.torch()]
        async with Pool(
            provider=Local(), nodes=ranks, console="silent", plugins=torch_plugin, checkpoints=root
        ) as pool:
            outcomes = await pool.broadcast(train(2, mesh_shape))
        assert [start for start, _, _ in outcomes] == [2 * index] * ranks
        assert sum(part for _, part, _ in outcomes) == elements * (2 if len(mesh_shape) == 2 else 1)
        expected = alone(2 * (index + 1))
        for _, _, parameters in outcomes:
            assert all(np.allclose(mine, theirs, atol=1e-4) for mine, theirs in zip(parameters, expected, strict=True))
    _whole_without_a_group(root, expected)
    _readable_by_torch_itself(root, expected)
    _written_once(root, elements)


def _whole_without_a_group(root: Path, expected: list[Any]) -> None:
    step, state = checkpoint("fsdp", root=root).load()
    assert step == 6
    model = torch.nn.Sequential(torch.nn.Linear(*SIZES[:2]), torch.nn.ReLU(), torch.nn.Linear(*SIZES[1:]))
    model.load_state_dict(state["model"])
    parameters = [parameter.detach().numpy() for parameter in model.parameters()]
    assert all(np.allclose(mine, theirs, atol=1e-4) for mine, theirs in zip(parameters, expected, strict=True))
    assert state["optimizer"]["state"]["0.bias"]["momentum_buffer"].shape == (SIZES[1],)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def _readable_by_torch_itself(root: Path, expected: list[Any]) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = max((root / "fsdp").glob("step-*"))
    target = {"model": {"0.bias": torch.zeros(SIZES[1])}}
    with pytest.warns(UserWarning, match="torch.distributed"):
        load(target, checkpoint_id=folder)
    assert np.allclose(target["model"]["0.bias"].numpy(), expected[1], atol=1e-4)


def _written_once(root: Path, elements: int) -> None:
    """Parameters and a moment each, in float32: neither the two replicas nor the ranks wrote them twice."""
    folder = max((root / "fsdp").glob("step-*"))
    ranks, tensors, overhead = 4, 8, 1500
    written = sum(path.stat().st_size for path in folder.glob("*.distcp"))
    assert written < 2 * 4 * elements + ranks * tensors * overhead
