"""Decide how long to wait between polls of a pool's jobs. No I/O, no clock.

POLL-1: the longer a job waits in the queue, the less often it is polled. But the client always notices a job's start in
less than half the time for which the job's steps wait for their client.
"""

from __future__ import annotations

SHARE = 20.0  # the pause is the time since the last change, divided by this number
MOST_S = 60.0
FIRST_LEASE_S = 30.0  # seconds that a step's first lease is longer than later leases: see step_server.py


def queue_pause_s(calm_s: float, *, lease_s: float, least_s: float) -> float:
    """Return the pause (seconds) between polls while all jobs wait in the queue. ``calm_s``: seconds since the last
    change; ``least_s``: the pause while jobs run.
    """
    return max(min(calm_s / SHARE, MOST_S, (lease_s + FIRST_LEASE_S) / 3), least_s)
