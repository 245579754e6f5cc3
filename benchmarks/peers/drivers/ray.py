"""Ray: tasks, and an actor in each of four processes for the broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from .driver import WORKERS, main, noop


class Member:
    def noop(self, number: int) -> int:
        return number


class Ray:
    version = ray.__version__

    def start(self) -> None:
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
        self.run = ray.remote(num_cpus=1)(_applied)
        self.noop = ray.remote(num_cpus=1)(noop)
        self.members: list[Any] = []

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return ray.get(self.run.remote(function, argument))

    def burst(self, count: int) -> list[int]:
        return ray.get([self.noop.remote(number) for number in range(count)])

    def broadcast(self, number: int) -> list[int]:
        if not self.members:
            member = ray.remote(num_cpus=0)(Member)
            self.members = [member.remote() for _ in range(WORKERS)]
        return ray.get([member.noop.remote(number) for member in self.members])

    def stop(self) -> None:
        ray.shutdown()


def _applied(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


if __name__ == "__main__":
    main(Ray())
