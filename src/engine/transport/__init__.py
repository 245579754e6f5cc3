"""The client's side of each node: the route to the node, the connection, and requests sent as frames.

`route` with `ssh_route` and `container_route` reaches a node. `connection` keeps the session over reconnects,
`heartbeat` notices silence, `link` sends requests and `node_reports` turns the answers into reports. Large
values are in `objects`.

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
