"""The engine: the API for users, and everything that is sent between client and nodes.

The packages of the engine are layers, whose order import-linter checks. Beside them: `pool` and `sync` are the two
classes of pools, `pool_verbs` has what both can do with calls, `pool_life` opens and closes them by a table of states,
`pool_options` checks their options, `integrations` has plugins as decorators. `runs` has former names of modules.

Public names: `pool.Pool`, `sync.SyncPool`, `integrations`.
Open first: `pool.py`.
"""

__all__ = ["integrations", "pool", "pool_options", "sync"]
