"""The client's side of each node: the route to the node, the connection, and requests sent as frames.

`route` with `ssh_route` and `container_route` reaches a node. `connection` keeps the session over reconnects,
`heartbeat` notices silence, `channels` and `flow_control` share the line. `link` sends requests; `node_reports` has the
table of the attempts on a node (an attempt is one try at a task) and turns the node's messages into reports for the
pool's actor. `task_streams` sends and receives items of streams, `task_output` what tasks print, `memory_checkpoints`
copies of checkpoints in nodes' memory, `diagnostics` stacks and profiles. Large values are in `objects`.

Public names: `connection.Connector`, `connection_settings.ConnectionSettings`, `link.NodeLink`,
`link.internal_payload`, `plugin_hosts.PluginHosts`, `instance_views.InstanceViews`, `reachability.anybody`,
`requirement_check.Wanted`.
Open first: `connection.py`, then `link.py`.
"""

__all__ = [
    "connection",
    "connection_settings",
    "diagnostics",
    "instance_views",
    "link",
    "memory_checkpoints",
    "plugin_hosts",
    "reachability",
    "requirement_check",
    "route",
    "ssh",
    "task_output",
]
