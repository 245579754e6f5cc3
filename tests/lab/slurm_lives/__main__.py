"""``python -m slurm_lives``: lives of every kind, or of some; ``--kind scancel --seed 7`` plays one again.

All lives are on one cluster, each on nodes of its own; exit status 0: nothing was broken in any.
"""

from __future__ import annotations

import sys

from cluster import missing
from lives.command import command

from .kinds import KINDS
from .life import played

if __name__ == "__main__":
    sys.exit(
        command(
            "slurm_lives",
            __doc__,
            kinds={kind.name: kind.tells for kind in KINDS.values()},
            lacks=missing,
            play=played,
            make="chaos-slurm",
            lives=20,
            jobs=2,
        )
    )
