"""What users of similar libraries expect, where it is found here: numbers of jobs, sizes of pools, hooks of plugins."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from outrider import InstanceInfo, Nodes, Plugin, Pool, SpecError, SyncPool, compute, instance_info


@compute
def job() -> int:
    return instance_info().job


@compute(max_restarts=2)
def fails_twice() -> tuple[int, int]:
    info = instance_info()
    if info.attempt < 3:
        raise OSError("not yet")
    return info.job, info.attempt


def test_each_call_has_a_number_of_its_own_and_all_its_ranks_and_attempts_the_same(pool: SyncPool) -> None:
    numbers = [job() >> pool for _ in range(3)]
    assert sorted(set(numbers)) == numbers
    (first, second) = job() @ pool
    assert first == second > numbers[-1]
    number, attempt = fails_twice() >> pool
    assert (number > first, attempt) == (True, 3)
    assert len(set(pool.gather(job(), job()))) == 2


def test_outside_of_a_pool_there_is_no_job() -> None:
    assert (job.local(), instance_info().pool) == (0, "")


def test_a_pool_of_one_node_grows_and_shrinks_while_it_is_open() -> None:
    with Pool(nodes=1, console="silent") as pool:
        assert len(job() @ pool) == 1
        pool.resize(3)  # which does not wait
        while pool.snapshot().ready < 3:
            time.sleep(0.01)
        assert len(job() @ pool) == 3
        pool.resize(1)
        assert len(job() @ pool) == 1


def test_a_pool_of_no_node_is_one_that_follows_its_work() -> None:
    with pytest.raises(SpecError, match="down to none"):
        Nodes(desired=0)
    with Pool(nodes=Nodes(min=0, max=2, scale="load"), console="silent") as pool:
        assert pool.snapshot().ready == 0
        assert job() >> pool


in_process: list[str] = []  # what the plugin has done in this process


@dataclass(frozen=True)
class Hooks(Plugin):
    """Every hook of a plugin that tasks see: each leaves a mark."""

    mark: str
    name: ClassVar[str] = "hooks"

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        return {"HOOKS": f"{self.mark} of rank {info.rank}"}

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        if "made" not in in_process:  # as around a process: it is kept for the tasks that come later
            in_process.append("made")
        in_process.append("entered")
        yield
        in_process.append("left")

    def wrap(self, function: Callable[..., Any], info: InstanceInfo) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            return self.mark, function(*args, **options)

        return wrapped


@compute
def seen() -> tuple[str | None, list[str], int]:
    return os.environ.get("HOOKS"), list(in_process), os.getpid()


def test_a_plugin_has_hooks_for_the_environment_the_function_each_task_and_each_process() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(os.fspath(__file__).partition("/tests/")[0])
        with Pool(nodes=2, plugins=[Hooks("mine")], console="silent") as pool:
            first = seen() @ pool
            second = seen() @ pool
    assert [mark for mark, _ in first] == ["mine", "mine"]
    assert [variable for _, (variable, _, _) in first] == ["mine of rank 0", "mine of rank 1"]
    assert [log for _, (_, log, _) in first] == [["made", "entered"]] * 2
    by_process = {process: log for _, (_, log, process) in first}
    for _, (_, log, process) in second:
        assert log == ([*by_process[process], "left", "entered"] if process in by_process else ["made", "entered"])
