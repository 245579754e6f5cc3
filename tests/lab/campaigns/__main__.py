"""``python -m campaigns``: lives of every kind, or of some; ``--kind lost --seed 7`` plays one again.

Each life is a process of its own, so that none knows of another; exit status 0: nothing was broken in any.
"""

from __future__ import annotations

import sys

from lives.command import command
from netlab import missing

from .alone import played
from .kinds import KINDS

if __name__ == "__main__":
    sys.exit(
        command(
            "campaigns",
            __doc__,
            kinds={kind.name: kind.tells for kind in KINDS.values()},
            lacks=missing,
            play=played,
            make="chaos-aws",
            lives=30,
            jobs=2,
        )
    )
