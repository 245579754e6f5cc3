"""Large values: results that stay on nodes, large arguments, and how their bytes travel.

`api.refs` is the user's reference, `serialization.stored_objects` the record of where the bytes are. `pool_objects`
puts, gets and frees values. `lineage` decides which calls compute lost values again, `remaking` runs them.
`node_objects` holds what one node has, with `object_memory` (limits) and `content_keys` (names by content).
`blob_transfers` sends between client and node. `peer_transfers` directs transfers between nodes (by the tree that
`distribution` plans, with keys of `peer_keys`); `node.peers` carries them out on the nodes.

Public names: `pool_objects.Objects`, `remaking.Remaking`, `node_objects.NodeObjects`, `content_keys.ContentKeys`,
`peer_transfers.PeerTransfers`, `blob_transfers.BlobTransfers`.
Open first: `pool_objects.py`, then `node_objects.py`.
"""

__all__ = ["blob_transfers", "content_keys", "node_objects", "peer_transfers", "pool_objects", "remaking"]
