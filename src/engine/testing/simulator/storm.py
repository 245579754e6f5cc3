"""Make the scenario of a large pool with many single tasks while its cloud takes many of its machines.

Unlike in scenarios of `draw`, the work and the faults only depend on the number of nodes, so sizes can be compared.
"""

from __future__ import annotations

from random import Random

from . import faults as f
from .scenario import CloudSpec, Job, Scenario

NODES = 100
TASKS_PER_NODE = 10
SPAN_S = 180.0  # seconds within which the tasks are submitted
# start of the storm as a share of `SPAN_S`: by then all nodes are ready and have as many tasks as they can run
BEGINS = 0.5
TAKES_S = (2.0, 20.0)  # range of a task's duration


def storm(
    seed: int,
    *,
    nodes: int | None = None,
    tasks: int | None = None,
    share: float | None = None,
    span_s: float | None = None,
) -> Scenario:
    """Return a pool of ``nodes`` (100) with ``tasks`` (10 per node); a one-minute storm takes ``share`` of them.

    ``span_s``: the tasks are submitted within that time (180 s), and the storm begins in the middle of it.
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
