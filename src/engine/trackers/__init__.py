"""Trackers: runs sent to MLflow and elsewhere by a process of their own.

`feed` sends one record to one tracker, and keeps its place in a state file; `cursor`, `selection`, `backoff` and
`endings` decide (pure). Each kind of tracker has a module.

Public names: `base.Tracker`, `trackers.new_tracker`, `process.TrackerProcess`, `state_file.StateFile`.
Open first: `base.py`, then `feed.py`.
"""
