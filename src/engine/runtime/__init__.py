"""The functions that a task calls, such as `instance_info`, `shard` and `should_stop`.

`plugin_host` runs the plugins on a node, `work_files` packs a node's files.

Public names: `instance_info.instance_info`, `shards.shard`, `preemption.should_stop`, `output_filter`,
`plugin_host.plugin_host`, `work_files`.
Open first: `instance_info.py`.
"""
