"""Decisions and supervision of a pool, with anyio as the only dependency.

Deciders, classes without I/O and clock, choose each task's node (`ledger`, `entries`, `placement`), run broadcasts
again (`generations`) and replace nodes (`fleet_controller`, `failure_detector`, `stragglers`). `pool`, `machines`,
`node_lives` and `broadcasts` carry out their decisions. `interfaces` has the protocols of connections and machines.

Public names: `pool.PoolActor`, `pool.supervise`, `interfaces`, `events`, `messages`, `amounts.Amounts`, `kernel.Ref`,
`seats.Seats`, `late_nodes.Preparing`.
Open first: `interfaces.py`, then `ledger.py`.
"""

__all__ = [
    "amounts",
    "events",
    "fleet_controller",
    "interfaces",
    "kernel",
    "late_nodes",
    "membership",
    "messages",
    "node_lives",
    "pool",
    "seats",
]
