"""The functions that a task calls, such as `instance_info`, `shard` and `should_stop`.

`plugin_host` runs the plugins on a node, `work_files` packs a node's files, `trace_context` continues the caller's
trace.

Public names: `instance_info.instance_info`, `instance_info.shard`, `preemption.should_stop`,
`preemption.on_preemption`, `output_filter.silent`, `profile.profile`, `plugin_host.plugin_host`, `work_files`,
`trace_context`.
Open first: `instance_info.py`.
"""

__all__ = ["instance_info", "output_filter", "plugin_host", "preemption", "profile", "trace_context", "work_files"]
