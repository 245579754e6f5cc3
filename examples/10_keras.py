"""Keras on the jax backend: `model.fit` as on one machine, trained on two nodes."""

from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray

from outrider import Local, Pool, compute, plugins, shard, stdout

Array = NDArray[np.float32]


@compute
@stdout(only="head")
def train(images: Array, labels: NDArray[np.int64], epochs: int) -> dict[str, list[float]]:
    """The history of the fit, and the first weights when it was over."""
    import keras  # its backend is chosen, and every model is spread over the ranks from here on

    x, y = shard(images, labels)  # this rank's share
    model: Any = keras.Sequential([
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
    ])  # fmt: skip
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    fitted = model.fit(x, y, batch_size=32, epochs=epochs, verbose=2)  # 32 of each rank: batches of 64
    return {**fitted.history, "weights": [float(value) for value in np.asarray(model.get_weights()[0]).flatten()]}


def bars(count: int) -> tuple[Array, NDArray[np.int64]]:
    """Noisy images with a bar: standing, lying, or along one of the two diagonals."""
    random = np.random.default_rng(0)
    images = random.normal(0, 0.3, (count, 8, 8, 1)).astype(np.float32)
    labels = random.integers(0, 4, count)
    line = np.arange(8)
    for image, label, place in zip(images, labels, random.integers(1, 7, count), strict=True):
        rows, columns = [(line, place), (place, line), (line, line), (line, 7 - line)][label]
        image[rows, columns] += 1
    return images, labels


async def main() -> None:
    images, labels = bars(1024)
    async with Pool(provider=Local(), nodes=2, plugins=[plugins.keras(backend="jax")]) as pool:
        first, second = await pool.broadcast(train(images, labels, 8))
    print(f"accuracy: {first['accuracy'][0]:.0%} after one epoch, {first['accuracy'][-1]:.0%} at the end")
    print(f"one model: {first['weights'] == second['weights']}")


if __name__ == "__main__":
    anyio.run(main)
