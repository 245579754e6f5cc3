"""Showing a pool's events: in the console, a notebook, the log, the run's record and trackers.

Sinks show or store the events of a pool: `plain` and `live`
(console), `notebook`, `log`, `record`, `tracking`. `prints` handles the output of tasks, `descriptions` converts events
to text, and `traces` creates OpenTelemetry spans.

Public names: `sinks.PoolSinks`, `log_calls`, `descriptions`.
Open first: `sinks.py`.
"""
