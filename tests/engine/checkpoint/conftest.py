"""Ranks without a pool: threads of this process that each believe to be one of a world; and an S3 of our own."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import context

from ..standstill import nodes_may_stand_still

S3 = """
import sys, threading
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer

# Moto looks whether an object exists, and then writes it: of two requests at once both would create it.
def one_request_at_a_time(host, port, app, threaded, **options):
    alone = threading.Lock()
    def serve(*request):
        with alone:
            return app(*request)
    return make_server(host, port, serve, threaded, **options)

make_server = threaded_moto_server.make_server
threaded_moto_server.make_server = one_request_at_a_time
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
import boto3
host, port = server.get_host_and_port()
boto3.client(
    "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
    aws_access_key_id="test", aws_secret_access_key="test",
).create_bucket(Bucket="bucket")
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    with nodes_may_stand_still():
        yield


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state directory of a test's own, for its pools; at the end nothing is left in it."""
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    yield
    assert list((tmp_path / "state").glob("local/*")) == []


class Cluster:
    """A pool as far as checkpoints see one: broadcasts of functions that are given nothing."""

    def __init__(self) -> None:
        self.pool = uuid.uuid4().hex[:8]
        self.generation = 0

    def broadcast(self, ranks: int, function: Callable[[int], Any], *, job: int = 1) -> list[Any]:
        """Results by rank; the first error, if there is one."""
        self.generation += 1
        results: list[Any] = [None] * ranks
        errors: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                results[rank] = self.as_rank(rank, ranks, lambda: function(rank), job=job)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=run, args=[rank]) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def as_rank(
        self, rank: int, ranks: int, function: Callable[[], Any], *, job: int = 1, generation: int = 0, attempt: int = 1
    ) -> Any:
        """In this thread, with the end that tasks have."""
        info = facts(self.pool, rank, ranks, job=job, generation=generation or self.generation, attempt=attempt)
        task = context.TaskContext(1, job, attempt, info)
        context.enter(task, alone=False)
        try:
            result = function()
            task.close(failed=False)
        finally:
            task.close(failed=True)
            context.leave()
        return result


def facts(pool: str, rank: int, ranks: int, *, job: int = 1, generation: int = 1, attempt: int = 1) -> dict[str, Any]:
    peers = [{"rank": r, "node": r, "hostname": "h", "address": "127.0.0.1", "port": 0} for r in range(ranks)]
    return {
        "pool": pool,
        "job": job,
        "node": rank,
        "total_nodes": ranks,
        "worker": 0,
        "workers_per_node": 1,
        "rank": rank,
        "world_size": ranks,
        "local_rank": 0,
        "local_world_size": 1,
        "is_head": rank == 0,
        "head_addr": "127.0.0.1",
        "head_port": 1,
        "accelerators": 0,
        "total_accelerators": 0,
        "accelerator": None,
        "peers": peers,
        "hostname": "h",
        "generation": generation,
        "attempt": attempt,
    }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"file://{tmp_path}/checkpoints"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An endpoint, in a process of its own, with a bucket named bucket."""
    server = subprocess.Popen(
        [sys.executable, "-c", S3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    assert endpoint, "moto's server did not start"
    yield endpoint
    server.stdin.close()
    server.wait(timeout=120)
    server.stdout.close()


@pytest.fixture
def s3_root(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder nobody else uses, with everything that is needed to reach it in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4().hex}"


@pytest.fixture(params=["file", "s3"])
def any_root(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("root" if request.param == "file" else "s3_root"))
