"""Preemption notices (a cloud announces that it takes a machine back): the sources, and the watcher that polls them.

Public names: `watcher.PreemptionWatcher`, `sources`.
Open first: `watcher.py`, then `clouds.py` for the notices of AWS, Azure and Google Cloud.
"""

__all__ = ["sources", "watcher"]
