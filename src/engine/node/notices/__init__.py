"""Preemption notices: a module for each source, and the watcher that polls them.

Public names: `watcher.PreemptionWatcher`, `sources`.
Open first: `watcher.py`.
"""
