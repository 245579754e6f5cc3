"""Make the scenario of a storm: a large pool runs many single tasks while the cloud takes away many of its machines.

Unlike `draw`, this module chooses jobs and faults in proportion to the number of nodes, so that runs of pools of
different sizes can be compared.
"""

from __future__ import annotations

from random import Random

from . import faults as f
from .scenario import CloudSpec, Job, Scenario

NODES = 100
TASKS_PER_NODE = 10
SPAN_S = 180.0  # seconds within which the tasks are submitted
# start of the storm, as a share of `SPAN_S`: by then all nodes are ready and busy
BEGINS = 0.5
TAKES_S = (2.0, 20.0)  # shortest and longest duration of a task in seconds


def storm(
    seed: int,
    *,
    nodes: int | None = None,
    tasks: int | None = None,
    share: float | None = None,
    span_s: float | None = None,
) -> Scenario:
    """Return the scenario of a pool that loses machines in a storm of one minute.

    Args:
        seed: The seed of all random numbers.
        nodes: The number of nodes. Default: 100.
        tasks: The number of tasks. Default: 10 per node.
        share: The share of the machines that the cloud takes away, from 0 to 1. None: no storm.
        span_s: Seconds within which the tasks are submitted; the storm begins after half of this time. Default: 180.
    """
    dice = Random(f"storm {seed}")  # noqa: S311
    size, lasts_s = nodes or NODES, span_s or SPAN_S
    jobs = tuple(
        Job(
            id=number,
            at_s=dice.uniform(0.0, lasts_s),
            takes_s=dice.uniform(*TAKES_S),
            ends=dice.choices(("returns", "raises", "dies"), (96, 3, 1))[0],
        )
        for number in range(1, (tasks or TASKS_PER_NODE * size) + 1)
    )
    return Scenario(
        seed=seed,
        nodes=size,
        min=size,
        max=size,
        launch_retries=20,
        announce=False,
        cloud=CloudSpec(launch_s=(1.0, 5.0), boot_s=(20.0, 60.0)),
        jobs=jobs,
        faults=(f.Storm(at_s=BEGINS * lasts_s, share=share),) if share else (),
    )
