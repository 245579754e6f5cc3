"""The scheduling policy of ranks: when it changes, for which threads, and that it returns."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_native_id

import pytest

from outrider import InstanceInfo
from outrider.engine.api.instance import Peer
from outrider.engine.runtime import instance_info


def info(*hostnames: str, local: int = 1) -> InstanceInfo:
    """Rank 0 on the first host, of one rank for each host name."""
    peers = tuple(Peer(rank, rank, hostname, "10.0.0.1") for rank, hostname in enumerate(hostnames))
    return InstanceInfo(world_size=len(peers), local_world_size=local, hostname=hostnames[0], peers=peers)


@pytest.mark.parametrize(
    ("place", "cores", "expected"),
    [
        (info("a"), 1, False),  # no other rank waits for it
        (info("a", "a"), 4, False),
        (info("a", "a", "a", "a"), 4, True),
        (info("a", "a", "a", "a"), 2, True),
        (info("a", "b", "c", "d"), 2, False),
        (info("a", "b", local=2), 2, True),
    ],
)
def test_policy_depends_on_ranks_and_cores_of_the_host(
    monkeypatch: pytest.MonkeyPatch, place: InstanceInfo, cores: int, expected: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert instance_info.fill_cores(place) is expected


def test_sharing_counts_ranks_of_a_host_whatever_their_node() -> None:
    assert instance_info.sharing(info("a", "b")) == 1
    assert instance_info.sharing(info("a", "b", local=2)) == 2
    assert instance_info.sharing(info("a", "a", "b", "a")) == 3


@contextmanager
def thread() -> Iterator[int]:
    """A thread that waits for the end of the block; gives its id."""
    started, end = threading.Event(), threading.Event()
    ids: list[int] = []

    def wait() -> None:
        ids.append(get_native_id())
        started.set()
        end.wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    started.wait()
    try:
        yield ids[0]
    finally:
        end.set()
        waiting.join()


def test_all_threads_change_policy_and_return() -> None:
    own = get_native_id()
    with thread() as before:
        with instance_info.without_preemption(), thread() as during:
            assert {os.sched_getscheduler(each) for each in (own, before, during)} == {os.SCHED_BATCH}
        assert {os.sched_getscheduler(each) for each in (own, before)} == {os.SCHED_OTHER}


def test_policy_returns_in_a_thread_that_outlives_the_ranks() -> None:
    ranks = instance_info.without_preemption()
    ranks.__enter__()
    with thread() as during:
        ranks.__exit__(None, None, None)
        assert os.sched_getscheduler(during) == os.SCHED_OTHER


def test_policy_of_the_user_stays() -> None:
    policies: list[int] = []

    def chosen() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with instance_info.without_preemption():
            policies.append(os.sched_getscheduler(0))
        policies.append(os.sched_getscheduler(0))

    with_policy = threading.Thread(target=chosen)  # this thread could not return from SCHED_IDLE without a privilege
    with_policy.start()
    with_policy.join()
    assert policies == [os.SCHED_IDLE, os.SCHED_IDLE]


@pytest.mark.parametrize("refused", ["sched_getscheduler", "sched_setscheduler"])
def test_sandbox_with_a_single_policy_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, refused, refuse)
    with instance_info.without_preemption():
        pass
