"""The room that users touch, and everything that crosses the wire.

Its rooms are layers, and import-linter checks their order. The files beside them are the two faces of a pool (`pool`,
`sync`), its opening and closing (`pool_life`), its options, and plugins as decorators (`integrations`).

Public names: `pool.Pool`, `sync.SyncPool`, `integrations`.
Open first: `pool.py`.
"""
