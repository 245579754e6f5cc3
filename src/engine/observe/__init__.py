"""The display of events: in the console, a notebook, the log, the record and trackers.

`observer` completes the events of a pool and sends them to the sinks: `plain` and `live` (console), `notebook`, `log`,
`record`, `tracking`. `prints` shows what tasks print, `descriptions` puts events into words, `traces` makes spans.

Public names: `observer.Observer`, `observer.PoolSnapshot`, `log_calls`, `descriptions`, `prints.PrintedLines`.
Open first: `observer.py`.
"""
