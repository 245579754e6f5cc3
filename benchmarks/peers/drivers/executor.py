"""concurrent.futures.ProcessPoolExecutor, the floor: it has no nodes, and its workers are forks of the caller."""

from __future__ import annotations

import multiprocessing
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from .driver import WORKERS, main, noop


class Executor:
    version = platform.python_version()

    def start(self) -> None:
        self.pool = ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("fork"))

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return self.pool.submit(function, argument).result()

    def burst(self, count: int) -> list[int]:
        return [future.result() for future in [self.pool.submit(noop, number) for number in range(count)]]

    def broadcast(self, number: int) -> list[int]:
        return [future.result() for future in [self.pool.submit(noop, number) for _ in range(WORKERS)]]

    def stop(self) -> None:
        self.pool.shutdown()


if __name__ == "__main__":
    main(Executor())
