"""Decisions and supervision of a pool, with anyio as the only dependency.

Deciders, which are classes without I/O and without a clock, choose where each task runs, when a broadcast begins again
and which node is replaced: `ledger`, `placement`, `generations`, `fleet_controller`, `failure_detector`, `autoscaler`.
Thin shells carry these decisions out: the actors `pool` and `node` with their helpers. Connections and machines are
accessed through the protocols of `interfaces`.

Public names: `pool.PoolActor`, `interfaces`, `events`, `messages`, `amounts.Amounts`, `kernel.Ref`.
Open first: `interfaces.py`, then `ledger.py`.
"""
