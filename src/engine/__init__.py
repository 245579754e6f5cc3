"""The engine: the API for users, and everything that is sent between client and nodes.

The packages of the engine are layers, whose order import-linter checks. The modules next to these packages are the two
classes of pools (`pool`, `sync`), their opening and closing (`pool_life`), their options, and plugins as decorators
(`integrations`).

Public names: `pool.Pool`, `sync.SyncPool`, `integrations`.
Open first: `pool.py`.
"""

__all__ = ["integrations", "pool", "pool_options", "sync"]
