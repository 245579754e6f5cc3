"""The client's side of each node: the route to the node, the connection, and requests sent as frames.

`route` with `unix_route`, `ssh_route` and `container_route` reaches a node. `connection` keeps the session over
reconnects, `heartbeat` notices silence, `link` sends requests and returns reports. `blob_transfers` moves large values
between client and node, `peer_transfers` from node to node; `distribution` and `object_memory` decide (pure).

Public names: `connection.Connector`, `link.NodeLink`, `plugin_hosts.PluginHosts`, `instance_views.InstanceViews`.
Open first: `connection.py`, then `link.py`.
"""
