"""Rules of the simulator: one module for each group of promises.

Public names: `promises.PROMISES`, and a class for each group, such as `jobs.JobRules`.
Open first: `promises.py`.
"""

__all__ = [
    "amounts",
    "costs",
    "executors",
    "jobs",
    "kept",
    "nodes",
    "ports",
    "promises",
    "queues",
    "scaling",
    "time_limits",
    "waves",
    "worlds",
]
