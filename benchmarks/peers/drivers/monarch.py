"""Monarch: a mesh of four processes with an actor in each. It has no tasks: calls go round the four actors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from monarch.actor import Actor, endpoint, this_host

from .driver import WORKERS, main


class Member(Actor):
    @endpoint
    async def noop(self, number: int) -> int:
        return number

    @endpoint
    async def apply(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return function(argument)


class Monarch:
    version = version("torchmonarch")

    def start(self) -> None:
        processes = this_host().spawn_procs(per_host={"workers": WORKERS})
        self.all = processes.spawn("members", Member)
        self.each = itertools.cycle([self.all.slice(workers=number) for number in range(WORKERS)])

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return next(self.each).apply.call_one(function, argument).get()

    def burst(self, count: int) -> list[int]:
        futures = [next(self.each).noop.call_one(number) for number in range(count)]
        return [future.get() for future in futures]

    def broadcast(self, number: int) -> list[int]:
        return [value for _, value in self.all.noop.call(number).get().items()]

    def stop(self) -> None:
        pass  # its processes end with this one


if __name__ == "__main__":
    main(Monarch())
