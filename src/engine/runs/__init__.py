"""The record of a run: a folder with the run's events, output, metrics and costs.

`recorded_calls` decides which calls have their events written (no I/O), `writer` is the thread that writes, `reader`
reads a record for the commands, `control` sends requests to the program that owns a run, `metrics` reads what tasks
logged.

Public names: `reader.Run`, `reader.runs_in`, `names.runs_folder`, `writer`, `metrics.metrics_in`, `control`.
Open first: `reader.py`, then `writer.py`.
"""
