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
def from_a_task(count: int) -> tuple[int, int]:
    import time

    import ray

    ray.init(log_to_driver=False, logging_level="error")

    @ray.remote(scheduling_strategy="SPREAD")  # else two nodes may do it all while the third starts its worker
    def square(number: int) -> tuple[str, int]:
        time.sleep(0.2)
        return ray.get_runtime_context().get_node_id(), number * number

    try:
        results = ray.get([square.remote(number) for number in range(count)])
    finally:
        ray.shutdown()
    return len({node for node, _ in results}), sum(value for _, value in results)


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


async def test_tasks_find_the_cluster_and_compute_on_all_nodes(place: Any) -> None:
    async with place.pool(3, plugins.ray(cpus_per_node=1)) as pool:
        assert pool.handle("ray").workers == 3
        nodes, total = await pool.run(from_a_task(12))
        assert (nodes, total) == (3, sum(number * number for number in range(12)))


def test_this_program_connects_with_the_clusters_token_and_forgets_it() -> None:
    """In a process of its own: Ray in one process has one cluster."""
    done = subprocess.run(
        [sys.executable, "-c", FROM_HERE],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1"},
    )
    assert done.stdout.splitlines()[-2:] == ["42 2", "False"], done.stderr
