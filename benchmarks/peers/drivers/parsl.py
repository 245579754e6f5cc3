"""Parsl's high-throughput executor with one block of four workers. It has no broadcast: four submits stand for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

from .driver import WORKERS, main, noop


class Parsl:
    version = parsl.__version__

    def start(self) -> None:
        self.executor = HighThroughputExecutor(
            label="local",
            address="127.0.0.1",
            max_workers_per_node=WORKERS,
            cores_per_worker=0.1,
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
        folder = tempfile.mkdtemp(prefix="parsl-")
        parsl.load(Config(executors=[self.executor], run_dir=folder, strategy="none", initialize_logging=False))

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return self.executor.submit(function, {}, argument).result()

    def burst(self, count: int) -> list[int]:
        return [future.result() for future in [self.executor.submit(noop, {}, number) for number in range(count)]]

    def broadcast(self, number: int) -> list[int]:
        return [future.result() for future in [self.executor.submit(noop, {}, number) for _ in range(WORKERS)]]

    def stop(self) -> None:
        parsl.dfk().cleanup()


if __name__ == "__main__":
    main(Parsl())
