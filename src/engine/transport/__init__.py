"""The client's end of each node: the way there, the connection, and orders as frames.

`route` with `unix_route`, `ssh_route` and `container_route` reaches a node, `connection` keeps the session over
reconnects, `heartbeat` notices silence, `link` sends orders and returns reports. Large values go by `blob_transfers`
and, from node to node, by `peer_transfers`; `distribution` and `object_memory` decide (pure).

Public names: `connection.Connector`, `link.NodeLink`, `plugin_hosts.PluginHosts`, `instance_views.InstanceViews`.
Open first: `connection.py`, then `link.py`.
"""
