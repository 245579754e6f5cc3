"""Record: what becomes of a pool's events, outside of the core, which enters this room by the protocol in
`api/sink.py`.

`sinks` opens the sinks of a pool: `display` shows events, `record_sink` stores them in the run's record (a folder) by
way of `runs`. `report` and `ui` show records, `trackers` sends them to other systems, `profiles` merges traces.

Public names: `sinks.PoolSinks`, `surroundings.leaves_record`, `record_sink.record_name`, `log_calls`, `profiles`,
`run_tables`.
Open first: `sinks.py`, then `record_sink.py`.
"""

__all__ = ["log_calls", "profiles", "record_sink", "run_tables", "sinks", "surroundings"]
