"""Dask's distributed scheduler with a local cluster of four worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import distributed

from .driver import WORKERS, main, noop


class Dask:
    version = distributed.__version__

    def start(self) -> None:
        self.cluster = distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        )
        self.client = distributed.Client(self.cluster)

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return self.client.submit(function, argument, pure=False).result()

    def burst(self, count: int) -> list[int]:
        return self.client.gather(self.client.map(noop, range(count), pure=False))

    def broadcast(self, number: int) -> list[int]:
        return [*self.client.run(noop, number).values()]

    def stop(self) -> None:
        self.client.close()
        self.cluster.close()


if __name__ == "__main__":
    main(Dask())
