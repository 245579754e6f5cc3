"""Dask itself: the pool's nodes as its cluster, from here and from tasks; certificates; the loss of nodes."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.request import urlopen

import pytest

from outrider import compute, plugins

pytestmark = pytest.mark.anyio


async def names_of(client: Any) -> set[str]:
    """The workers that the scheduler knows."""
    workers = (await client.scheduler.identity(n_workers=-1))["workers"]
    return {worker["name"] for worker in workers.values()}


@compute
def from_a_task(count: int) -> int:
    from distributed import Client

    with Client() as client:
        return sum(client.gather(client.map(lambda x: x * x, range(count))))


async def test_a_client_computes_on_all_nodes(place: Any) -> None:
    import dask.array

    async with place.pool(3, plugins.dask(threads_per_worker=1)) as pool:
        cluster = pool.handle("dask")
        assert cluster.workers == 3
        async with cluster.client(asynchronous=True) as client:
            assert len(await names_of(client)) == 3
            assert (
                await client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.address) == "127.0.0.1"
            )
            page = await asyncio.to_thread(urlopen, cluster.dashboard.replace("/status", "/info/main/workers.html"))
            assert b"node-2" in page.read()
            array = dask.array.ones((2000, 2000), chunks=(500, 500))
            assert await client.compute((array + array.T).sum()) == 8_000_000
        assert await pool.run(from_a_task(10)) == 285


async def test_who_has_no_certificate_is_neither_let_in_nor_told_anything(place: Any) -> None:
    from distributed import Client

    async def pages(dask_scheduler: Any = None, dask_worker: Any = None) -> tuple[str, set[int]]:
        """Where a scheduler or worker answers HTTP, and the answers for what Dask has there without being asked."""
        import asyncio
        from http.client import HTTPConnection

        server = (dask_scheduler or dask_worker).http_server

        def status(path: str) -> int:
            connection = HTTPConnection(server.address, server.port, timeout=60)
            connection.request("GET", path)
            return connection.getresponse().status

        paths = ("/info/main/workers.html", "/json/identity.json", "/metrics", "/health")
        return server.address, {await asyncio.to_thread(status, path) for path in paths}

    async with place.pool(1, plugins.dask(dashboard=False)) as pool:
        cluster = pool.handle("dask")
        assert cluster.address.startswith("tls://")
        assert cluster.dashboard is None
        async with cluster.client(asynchronous=True) as client:
            told = [await client.run_on_scheduler(pages), *(await client.run(pages)).values()]
            assert told == [("127.0.0.1", {404})] * 2
        with pytest.raises((OSError, TimeoutError, ValueError)):
            await Client(cluster.address.replace("tls://", "tcp://"), asynchronous=True, timeout=3)
        stranger = plugins.dask()
        from distributed import Security

        assert stranger.certificate is not None
        security = Security(
            require_encryption=True,
            tls_ca_file=stranger.certificate.cert,
            tls_client_cert=stranger.certificate.cert,
            tls_client_key=stranger.certificate.key,
        )
        with pytest.raises((OSError, TimeoutError)):
            await Client(cluster.address, security=security, asynchronous=True, timeout=3)


async def test_a_lost_workers_tasks_run_elsewhere_and_its_replacement_works(place: Any) -> None:
    def slowly(number: int) -> int:
        import time

        time.sleep(0.2)
        return number

    async with place.pool(3, plugins.dask(threads_per_worker=1), spare=1) as pool:
        cluster = pool.handle("dask")
        async with cluster.client(asynchronous=True) as client:
            head = cluster.head["address"]
            lost = max(pool.snapshot().nodes, key=lambda node: node.node != cluster.on)
            assert lost.rank is not None
            futures = client.map(slowly, range(12))
            place.lose(pool, lost.rank)
            assert sum(await client.gather(futures)) == sum(range(12))
            async with asyncio.timeout(180):
                while len(names := await names_of(client)) < 3 or f"node-{lost.node}" in names:
                    await asyncio.sleep(0.05)
            assert cluster.head["address"] == head


async def test_with_the_schedulers_node_a_new_cluster_begins(place: Any) -> None:
    async with place.pool(2, plugins.dask(), spare=1) as pool:
        cluster = pool.handle("dask")
        before = cluster.head["address"]
        place.lose(pool, next(node.rank for node in pool.snapshot().nodes if node.node == cluster.on))
        async with asyncio.timeout(180):
            while cluster.head.get("address") in (None, before):
                await asyncio.sleep(0.05)
        await cluster.wait(2)
        async with cluster.client(asynchronous=True) as client:
            assert await client.submit(sum, [1, 2, 3]) == 6


def test_without_async_too(place: Any) -> None:
    dask = plugins.dask(threads_per_worker=1, workers_per_node=2, tls=False)
    with place.pool(2, dask) as pool, pool.handle("dask").client() as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 4
        assert client.submit(sum, [1, 2, 3]).result() == 6
