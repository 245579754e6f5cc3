"""The promises that the referee holds a pool to, by number; each is stated in full where it is checked."""

from __future__ import annotations

PROMISES = {
    "SIM-1": "a job settles exactly once",
    "SIM-2": "with what its own attempt came to, on the node that is named",
    "SIM-3": "only what lost its node runs again, as often as allowed",
    "SIM-4": "ranks 0..N-1, one world, one head, free ports",
    "SIM-5": "no two generations run at the same time",
    "SIM-6": "no work for nodes that are noticed, draining, standing by or lost",
    "SIM-7": "an attempt begins once, and not beside more than there are slots",
    "SIM-8": "a task that takes machines down is quarantined",
    "SIM-9": "nothing waits for ever",
    "SIM-10": "never silently fewer nodes",
    "SIM-11": "the pool comes back to its size",
    "SIM-12": "no machine costs money that nobody wants",
    "SIM-13": "nothing is replaced twice",
    "SIM-14": "a notice brings the replacement within 5 s, a spare at once",
    "SIM-15": "no living node is given up lightly",
    "SIM-16": "a dead machine is seen within 10 s",
    "SIM-17": "at rest every node knows the others",
    "SIM-18": "after the end nothing runs",
    "SIM-19": "with a spare at hand a lost generation is followed within 5 s",
    "SIM-20": "no actor fails",
    "SIM-21": "a straggler is soon replaced",
    "SIM-22": "a node is not heard of other nodes' attempts",
    "SIM-23": "an executor that can start no worker soon ends",
    "SIM-24": "never more machines than are wanted",
    "SIM-25": "nodes that have run something are replaced",
    "SIM-26": "every machine that costs money counts for `max_cost`",
}
