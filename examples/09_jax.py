"""One JAX program over two nodes: a batch that lies on the devices of all of them, and a jitted step."""

from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray

from outrider import Local, Pool, compute, plugins, shard, stdout

Array = NDArray[np.float32]


@compute
@stdout(only="head")
def train(points: Array, labels: Array, steps: int) -> tuple[int, float, list[float]]:
    """How many devices there were, the share of points that came out right, and the losses."""
    import jax  # the ranks are connected already: these are the devices of both
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("rows",))
    by_row, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    # Each rank puts its share of the rows on its own devices; together they are one array.
    x, y = (jax.make_array_from_process_local_data(by_row, own) for own in shard(points, labels))

    random = np.random.default_rng(0)  # the same everywhere
    weights = [random.normal(0, 0.5, shape).astype(np.float32) for shape in ((2, 64), (64,), (64, 1))]
    weights = jax.device_put(weights, everywhere)

    def scores(weights: Any, x: Any) -> Any:
        inner, bias, outer = weights
        return (jnp.tanh(x @ inner + bias) @ outer)[:, 0]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.logaddexp(0, -(2 * y - 1) * scores(weights, x)).mean()

    def descend(weights: Any, x: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x, y)  # the exchange between the ranks is in here
        return [weight - 0.5 * slope for weight, slope in zip(weights, slopes, strict=True)], value

    step = jax.jit(descend, out_shardings=(everywhere, everywhere))
    losses = []
    for number in range(steps):
        weights, value = step(weights, x, y)
        losses.append(float(value))
        if number % 100 == 99:
            print(f"step {number + 1}: loss {losses[-1]:.4f}")
    right = jax.jit(lambda weights, x, y: ((scores(weights, x) > 0) == (y > 0.5)).mean(), out_shardings=everywhere)
    return jax.device_count(), float(right(weights, x, y)), losses


def rings(count: int) -> tuple[Array, Array]:
    """Points of two rings, one within the other: no straight line parts them."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, count)
    angles, radius = random.uniform(0, 2 * np.pi, count), 1 + labels + random.normal(0, 0.1, count)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * radius[:, None]
    return points.astype(np.float32), labels.astype(np.float32)


async def main() -> None:
    points, labels = rings(2048)
    async with Pool(provider=Local(), nodes=2, plugins=[plugins.jax()]) as pool:
        by_rank = await pool.broadcast(train(points, labels, 300))
    devices, right, losses = by_rank[0]
    print(f"on {devices} devices: {right:.1%} right, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    print(f"every rank has the same: {all(others == by_rank[0] for others in by_rank)}")


if __name__ == "__main__":
    anyio.run(main)
