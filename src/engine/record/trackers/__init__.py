"""Trackers: a separate process sends runs to MLflow and other destinations.

`feed` sends the record (the folder) of one run to one tracker, and saves its position in a `state_file`. `selection`
decides which points are sent. Each kind of tracker has a module.

Public names: `base.Tracker`, `trackers.new_tracker`, `process.TrackerProcess`, `state_file.StateFile`.
Open first: `base.py`, then `feed.py`.
"""

__all__ = ["base", "feed", "process", "selection", "state_file", "trackers"]
