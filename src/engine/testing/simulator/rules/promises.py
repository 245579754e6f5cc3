"""The promises that the referee holds a pool to, by number; each is stated in full where it is checked."""

from __future__ import annotations

PROMISES = {
    "SIM-1": "a job settles exactly once",
    "SIM-2": "a result is that of the job's own attempt, on the node that it names",
    "SIM-3": "only tasks that lost their node run again, at most as often as allowed",
    "SIM-4": "a generation has ranks 0..N-1, one world, one head and free ports",
    "SIM-5": "no two generations of a broadcast run at the same time",
    "SIM-6": "no work is sent to nodes that are noticed, draining, standing by or lost",
    "SIM-7": "an attempt begins once, and a node runs at most as many tasks as it has slots",
    "SIM-8": "a task that takes machines down is quarantined",
    "SIM-9": "nothing waits for ever",
    "SIM-10": "a broadcast never runs on fewer nodes without the user's consent",
    "SIM-11": "the pool comes back to its size",
    "SIM-12": "no machine costs money that the pool does not want",
    "SIM-13": "nothing is replaced twice",
    "SIM-14": "a replacement is asked for within 5 s of a notice; a spare takes over at once",
    "SIM-15": "a living node is not given up for a short stall",
    "SIM-16": "the loss of a machine is known within 10 s",
    "SIM-17": "at rest every node knows all ready nodes",
    "SIM-18": "nothing runs after the pool is closed",
    "SIM-19": "with a spare, the next generation begins within 5 s of a loss",
    "SIM-20": "no actor fails",
    "SIM-21": "a straggler is replaced before the boot timeout",
    "SIM-22": "a node's reports on attempts of other nodes are ignored",
    "SIM-23": "an executor that can start no worker ends soon",
    "SIM-24": "there are never more machines than wanted",
    "SIM-25": "nodes that have run something are replaced",
    "SIM-26": "every machine that costs money counts towards `max_cost`",
}
