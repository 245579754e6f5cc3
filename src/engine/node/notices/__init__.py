"""Preemption notices (a cloud announces that it takes a machine back): a module per cloud, and the watcher that polls.

Public names: `watcher.PreemptionWatcher`, `sources`.
Open first: `watcher.py`.
"""
