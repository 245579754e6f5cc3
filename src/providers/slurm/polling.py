"""Decide how long to wait until Slurm is asked again what becomes of a pool's jobs. No I/O, no clock.

POLL-1: what waits in the queue for long is asked for less and less often, yet so often that a job that has started is
heard of in less than half the time for which its steps wait for their client.
"""

from __future__ import annotations

SHARE = 20.0  # of the time for which nothing has changed
MOST_S = 60.0
FIRST_LEASE_S = 30.0  # is added to a step's first lease: see step_server.py


def queue_pause_s(calm_s: float, *, lease_s: float, least_s: float) -> float:
    """Return the pause while all jobs wait in the queue, and nothing of them has changed for ``calm_s``. ``least_s``:
    the pause while jobs run.
    """
    return max(min(calm_s / SHARE, MOST_S, (lease_s + FIRST_LEASE_S) / 3), least_s)
