"""The scheduling policy for ranks that wait for each other, on a host where they occupy all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..api.instance import InstanceInfo


def sharing(info: InstanceInfo) -> int:
    """Return the number of ranks that may run on this host at the same time."""
    return max(sum(peer.hostname == info.hostname for peer in info.peers), info.local_world_size)


def fill_cores(info: InstanceInfo) -> bool:
    """Return whether the ranks on this host occupy all of its cores. False for a task that is not a rank."""
    return info.world_size > 1 and sharing(info) >= len(os.sched_getaffinity(0))


@contextmanager
def without_preemption() -> Iterator[None]:
    """Run this process under SCHED_BATCH in the block: when one of its threads wakes up, it does not preempt a running
    thread.

    Ranks that share cores wait for each other. If a rank is preempted by ranks that it has just woken, all of them have
    to wait for it. Threads that start within the block inherit the policy. At the end of the block all threads return
    to SCHED_OTHER, which needs no privilege. A policy that the user has chosen (`chrt`) stays.
    """
    is_ours = _switch(os.SCHED_OTHER, os.SCHED_BATCH)
    try:
        yield
    finally:
        if is_ours:
            _switch(os.SCHED_BATCH, os.SCHED_OTHER)


def _switch(before: int, after: int) -> bool:
    """Change the scheduling policy from ``before`` to ``after`` in all threads of this process that have it.

    Return False, and change nothing, if the current thread has another policy.
    """
    try:
        if os.sched_getscheduler(0) != before:
            return False
        os.sched_setscheduler(0, after, os.sched_param(0))
        threads = os.listdir("/proc/self/task")  # noqa: PTH208 - numbers, not paths
    except OSError:  # sandboxes (gVisor, seccomp) support only one scheduling policy
        return False
    for thread in map(int, threads):
        with suppress(OSError):  # the thread has ended in the meantime
            if os.sched_getscheduler(thread) == before:
                os.sched_setscheduler(thread, after, os.sched_param(0))
    return True
