"""Ray itself: the pool's nodes as its cluster, from tasks and from here."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from outrider import compute, plugins

pytestmark = pytest.mark.anyio


@compute
def from_a_task(count: int) -> tuple[int, list[int]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(log_to_driver=False, logging_level="error")

    @ray.remote
    def square(number: int) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), number * number

    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        # Each item is bound to its node: Ray gives what it may choose to whichever nodes have started their workers.
        bound = [NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=False) for number in range(count)]
        results = ray.get([square.options(scheduling_strategy=to).remote(n) for n, to in enumerate(bound)])
    finally:
        ray.shutdown()
    return len({node for node, _ in results}), [value for _, value in results]


FROM_HERE = """
import sys
import ray
from outrider import Local, Pool, plugins

with Pool(provider=Local(), nodes=2, plugins=[plugins.ray(cpus_per_node=1)], console="silent") as pool:
    pool.handle("ray").init(log_to_driver=False, logging_level="error")
    value = ray.remote(lambda: 6 * 7).remote()
    print(ray.get(value), len([node for node in ray.nodes() if node["Alive"]]))
    ray.shutdown()
import os
print("RAY_AUTH_TOKEN" in os.environ)
"""


async def test_tasks_find_the_cluster_and_compute_on_each_node(place: Any) -> None:
    async with place.pool(2, plugins.ray(cpus_per_node=1)) as pool:  # each of Ray's nodes takes 6 s of a core
        assert pool.handle("ray").workers == 2
        assert await pool.run(from_a_task(12)) == (2, [number * number for number in range(12)])


def test_this_program_connects_with_the_clusters_token_and_forgets_it() -> None:
    """In a process of its own: Ray in one process has one cluster."""
    done = subprocess.run(
        [sys.executable, "-c", FROM_HERE],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1"},
    )
    assert done.stdout.splitlines()[-2:] == ["42 2", "False"], done.stderr
