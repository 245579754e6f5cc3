"""The command of a campaign: which lives are played, how many side by side, and what is printed of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence

from . import report
from .turns import Life, turns
from .verdict import Verdict


def command(
    prog: str,
    story: str | None,
    *,
    kinds: Mapping[str, str],
    lacks: Callable[[], Sequence[str]],
    play: Callable[[Sequence[Life], int], Iterator[Verdict]],
    make: str,
    lives: int,
    jobs: int,
) -> int:
    """Its exit status; 0: nothing was broken in any life.

    ``kinds``: what each tells, by its name. ``play``: lives, and how many at a time. ``make``: the target that plays
    one again. ``lives`` of each kind and ``jobs`` at a time are what is usual.
    """
    plays = "\n".join(f"  {name:14} {tells}" for name, tells in kinds.items())
    parser = argparse.ArgumentParser(
        prog=prog,
        description=story,
        epilog=f"kinds:\n{plays}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", nargs="+", action="extend", metavar="KIND", help="those that are played; usual: all")
    parser.add_argument("--lives", type=int, default=lives, help="of each kind (usual: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first life; the next one has the next")
    parser.add_argument("--jobs", type=int, default=jobs, help="lives at a time (usual: %(default)s)")
    options = parser.parse_args()
    chosen = options.kind or [*kinds]
    if unknown := {*chosen} - {*kinds}:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    if missing := lacks():
        print(f"no lab on this machine: {'; '.join(missing)}")
        return 2
    verdicts: list[Verdict] = []
    for verdict in play(turns(chosen, range(options.seed, options.seed + options.lives)), options.jobs):
        verdicts.append(verdict)
        report.tell(verdict, make=make)
    report.table(verdicts)
    return 0 if not any(verdict.broken for verdict in verdicts) else 1
