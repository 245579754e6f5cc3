"""The main package: everything that users import, and everything that is sent over the wire.

Its subpackages are layers, and import-linter checks their order. The modules beside them are the two classes for a pool
(`pool`, `sync`), its opening and closing (`pool_life`), its options, and plugins as decorators (`integrations`).

Public names: `pool.Pool`, `sync.SyncPool`, `integrations`.
Open first: `pool.py`.
"""
