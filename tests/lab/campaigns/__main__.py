"""``python -m campaigns``: lives of every kind, or of some; ``--kind lost --seed 7`` plays one again.

Each life is a process of its own, so that none knows of another; exit status 0: nothing was broken in any.
"""

from __future__ import annotations

import argparse
import sys

from netlab import missing

from . import report
from .kinds import KINDS
from .life import Verdict
from .turns import played, turns


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="campaigns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", nargs="*", metavar="KIND", default=[*KINDS], help=f"of {', '.join(KINDS)}")
    parser.add_argument("--lives", type=int, default=30, help="of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the first life; the next one has the next")
    parser.add_argument("--jobs", type=int, default=2, help="lives at a time")
    options = parser.parse_args()
    if unknown := {*options.kind} - {*KINDS}:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    if lacks := missing():
        print(f"no lab on this machine: {'; '.join(lacks)}")
        return 2
    verdicts: list[Verdict] = []
    for verdict in played(turns(options.kind, range(options.seed, options.seed + options.lives)), jobs=options.jobs):
        verdicts.append(verdict)
        report.tell(verdict)
    report.table(verdicts)
    return 0 if not any(verdict.broken for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
