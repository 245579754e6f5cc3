"""Keras itself: one model over several processes on the jax backend, and the other backends where they are chosen."""

from __future__ import annotations

import os
from typing import Any

import pytest

from outrider import compute, instance_info, integrations, plugins, shard

pytestmark = pytest.mark.anyio


@compute
def fit(epochs: int) -> dict[str, Any]:
    """Fits a line with ``model.fit``; every rank gives its share of the data."""
    import keras
    import numpy as np

    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(-1, 1)
    own = shard(x)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    began = [np.asarray(weight).flatten().tolist() for weight in model.get_weights()]
    model.compile(optimizer=keras.optimizers.SGD(0.3), loss="mse")
    per_rank = 16 // instance_info().world_size  # of one batch of 16
    history = model.fit(own, 3 * own + 1, batch_size=per_rank, epochs=epochs, shuffle=False, verbose=0)
    distribution = keras.distribution.distribution()
    return {
        "backend": (keras.backend.backend(), os.environ["KERAS_BACKEND"]),
        "began": began,
        "weights": [float(value) for weight in model.get_weights() for value in np.asarray(weight).flatten()],
        "loss": history.history["loss"][-1],
        "processes": None if distribution is None else distribution.num_processes,
    }


async def test_fit_on_the_jax_backend_trains_one_model(place: Any) -> None:
    async with place.pool(2, plugins.keras("jax", seed=5)) as pool:
        ranks = await pool.broadcast(fit(10))
        alone = await pool.run(fit(10))
    assert [rank["backend"] for rank in ranks] == [("jax", "jax")] * 2
    assert [rank["processes"] for rank in ranks] == [2, 2]
    assert ranks[0]["began"] == ranks[1]["began"]
    assert ranks[0]["weights"] == ranks[1]["weights"] == pytest.approx([3, 1], abs=0.05)
    assert ranks[0]["loss"] == ranks[1]["loss"] < 0.01
    assert (alone["processes"], alone["weights"]) == (None, pytest.approx([3, 1], abs=0.05))


async def test_several_devices_of_a_process_are_used(place: Any) -> None:
    async with place.pool(1, plugins.jax(cpu_devices=2), plugins.keras()) as pool:
        alone = await pool.run(fit(10))
    assert (alone["processes"], alone["weights"]) == (1, pytest.approx([3, 1], abs=0.05))


@compute
@integrations.keras("torch")
def on_torch(epochs: int) -> tuple[str, int, list[float]]:
    """A Keras model is a torch module: DDP takes it, in a loop of one's own."""
    import keras
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    keras.utils.set_random_seed(0)
    x = shard(torch.linspace(-1, 1, 64).unsqueeze(1))
    model: Any = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    together = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(together.parameters(), lr=0.5)
    for _ in range(epochs):
        loss = (together(x) - 3 * x - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = [float(value) for weight in model.get_weights() for value in weight.flatten()]
    return keras.backend.backend(), dist.get_world_size(), weights


@compute
@integrations.keras("tensorflow")
def on_tensorflow() -> tuple[str, bool]:
    import keras

    return keras.backend.backend(), "TF_CONFIG" in os.environ


async def test_a_function_chooses_its_backend(place: Any) -> None:
    async with place.pool(2) as pool:
        ranks = await pool.broadcast(on_torch(30))
        assert [rank[:2] for rank in ranks] == [("torch", 2)] * 2
        assert ranks[0][2] == ranks[1][2] == pytest.approx([3, 1], abs=0.05)
        assert await pool.run(on_tensorflow()) == ("tensorflow", True)
