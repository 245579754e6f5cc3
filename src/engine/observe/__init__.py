"""Showing a pool's events: in the console, a notebook, the log, the run's record and trackers.

`observer` completes the events of a pool and passes them to sinks, which show or store them: `plain` and `live`
(console), `notebook`, `log`, `record`, `tracking`. `prints` handles the output of tasks, `descriptions` converts events
to text, and `traces` creates OpenTelemetry spans.

Public names: `observer.Observer`, `pool_view.PoolSnapshot`, `log_calls`, `descriptions`, `prints.PrintedLines`.
Open first: `observer.py`.
"""
