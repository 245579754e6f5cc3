"""Decisions and supervision of a pool, with anyio as the only dependency.

Deciders have no I/O and no clock. Of tasks: `ledger` (what waits, runs, has ended) with `entries` (how often each ran
and may run again) and `placement` (which node a task gets). Of broadcasts: `generations` (one run of a broadcast on
fixed nodes, the seats of its ranks, the next run after a loss), `fencing` (the end of all old ranks before the next)
and `stalls` (ranks that are silent). Of nodes: `fleet_controller` (how many, replacements), `membership` (ready nodes,
their free ports), `failure_detector` and `stragglers` (lost and late ones).
Shells carry decisions out: `pool` and `kernel` (mailboxes), `machines` and `launches` (calls to the provider),
`node_lives` (one node from start to end), `broadcasts` (gives ports, and makes all ranks stop at one step).

Public names: `pool.PoolActor`, `pool.supervise`, `interfaces`, `events`, `messages`, `amounts.Amounts`, `kernel.Ref`,
`seats.Seats` (ranks of ready nodes), `late_nodes.Preparing`.
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
