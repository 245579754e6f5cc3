"""Decide how long to wait between polls of a pool's jobs. No I/O, no clock.

POLL-1: jobs that wait in the queue for long are polled less and less often, yet often enough that a job's start is
noticed in less than half the time for which its steps wait for their client.
"""

from __future__ import annotations

SHARE = 20.0  # the pause is the time without a change, divided by this
MOST_S = 60.0
FIRST_LEASE_S = 30.0  # seconds added to a step's first lease: see step_server.py


def queue_pause_s(calm_s: float, *, lease_s: float, least_s: float) -> float:
    """Return the pause while all jobs wait in the queue, without a change for ``calm_s``. ``least_s``: the pause while
    jobs run.
    """
    return max(min(calm_s / SHARE, MOST_S, (lease_s + FIRST_LEASE_S) / 3), least_s)
