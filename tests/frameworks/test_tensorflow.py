"""TensorFlow itself: MultiWorkerMirroredStrategy over workers on several nodes, and its end."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import anyio
import pytest

from outrider import compute, instance_info, plugins, shard

pytestmark = pytest.mark.anyio


@compute
def train(steps: int) -> dict[str, Any]:
    """Fits a line by hand, since ``keras.fit`` knows this strategy no more; every worker on its share."""
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = shard(np.linspace(-1, 1, 64, dtype=np.float32))
    with strategy.scope():
        weights = tf.Variable([0.0, 0.0])

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(weights[0] * x + weights[1] - 3 * x - 1))
            return tape.gradient(loss, weights)

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica), axis=None)

    for _ in range(steps):
        weights.assign_sub(0.5 * step())
    config = json.loads(os.environ["TF_CONFIG"])
    return {
        "weights": [float(value) for value in weights.numpy()],
        "replicas": strategy.num_replicas_in_sync,
        "index": config["task"]["index"],
        "cluster": config["cluster"],
    }


@pytest.mark.parametrize(
    ("nodes", "each", "times"), [(2, 1, 1), (2, 1, 2), (1, 2, 2)], ids=["2 nodes", "2 nodes, twice", "2 ranks, twice"]
)
async def test_workers_train_one_model(place: Any, nodes: int, each: int, times: int) -> None:
    async with place.pool(nodes, plugins.tensorflow(ranks_per_node=each)) as pool:
        generations = [await pool.broadcast(train(20)) for _ in range(times)]
    for ranks in generations:
        assert [rank["index"] for rank in ranks] == [0, 1]
        assert [rank["replicas"] for rank in ranks] == [2, 2]
        assert ranks[0]["weights"] == ranks[1]["weights"] == pytest.approx([3, 1], abs=0.05)
        assert ranks[0]["cluster"] == ranks[1]["cluster"]
        assert len(set(ranks[0]["cluster"]["worker"])) == 2
    clusters = [ranks[0]["cluster"] for ranks in generations]
    assert all(first != second for first, second in itertools.pairwise(clusters))  # each finds other ports


async def test_a_task_alone_is_a_cluster_of_one(place: Any) -> None:
    async with place.pool(1, plugins.tensorflow()) as pool:
        alone = await pool.run(train(20))
    assert (alone["replicas"], alone["weights"]) == (1, pytest.approx([3, 1], abs=0.05))


@compute
def lasts_longer_on_rank_1() -> int:
    """Rank 0 is where the others ask each other things: it must not go before they have."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    tf.distribute.MultiWorkerMirroredStrategy()
    cluster: Any = context.context()
    if instance_info().rank == 0:
        cluster.set_config_key_value("rank 0", "is through")
    else:
        cluster.get_config_key_value("rank 0")
        for number in range(2000):
            cluster.set_config_key_value(f"late {number}", "rank 1 is not")
    return instance_info().rank


async def test_who_is_through_first_waits_for_the_others(place: Any) -> None:
    async with place.pool(2, plugins.tensorflow()) as pool:
        with anyio.fail_after(200):
            assert await pool.broadcast(lasts_longer_on_rank_1()) == [0, 1]


@compute
def fails_on_rank_1() -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if instance_info().rank == 1:
        raise ValueError("mine")
    strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)


async def test_a_worker_that_raises_is_not_waited_for(place: Any) -> None:
    async with place.pool(2, plugins.tensorflow()) as pool:
        with anyio.fail_after(200), pytest.raises(ExceptionGroup) as caught:
            await pool.broadcast(fails_on_rank_1())
    assert any(isinstance(error, ValueError) and str(error) == "mine" for error in caught.value.exceptions)
