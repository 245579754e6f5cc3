"""``python -m campaigns``: lives of every kind, or of some; ``--kind lost --seed 7`` plays one again.

Each life is a process of its own, so that none knows of another; exit status 0: nothing was broken in any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict

from netlab import missing

from . import report
from .kinds import KINDS
from .life import Verdict, live

LIFE_S = 1500.0  # for one life in all; what a life waits for has deadlines of its own, which say more


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="campaigns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", nargs="*", metavar="KIND", default=[*KINDS], help=f"of {', '.join(KINDS)}")
    parser.add_argument("--lives", type=int, default=30, help="of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the first life; the next one has the next")
    parser.add_argument("--jobs", type=int, default=2, help="lives at a time")
    parser.add_argument("--here", action="store_true", help="play one life in this process, and print it as JSON")
    options = parser.parse_args()
    if unknown := {*options.kind} - {*KINDS}:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    if lacks := missing():
        print(f"no lab on this machine: {'; '.join(lacks)}")
        return 2
    if options.here:
        print(json.dumps(asdict(live(KINDS[options.kind[0]], options.seed))))
        return 0
    seeds = range(options.seed, options.seed + options.lives)
    verdicts: list[Verdict] = []
    for verdict in played([(kind, seed) for kind in options.kind for seed in seeds], jobs=options.jobs):
        verdicts.append(verdict)
        report.tell(verdict)
    report.table(verdicts)
    return 0 if not any(verdict.broken for verdict in verdicts) else 1


def played(lives: Sequence[tuple[str, int]], *, jobs: int) -> Iterator[Verdict]:
    """As they end."""
    with ThreadPoolExecutor(jobs) as turns:
        for turn in as_completed([turns.submit(_alone, life) for life in lives]):
            yield turn.result()


def _alone(life: tuple[str, int]) -> Verdict:
    """A process that plays it. Whatever ends that process, its hosts end with it."""
    kind, seed = life
    command = [sys.executable, "-m", "campaigns", "--here", "--kind", kind, "--seed", str(seed)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIFE_S, check=False)
        return Verdict(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        story = f"the life has not ended within {LIFE_S:g} s"
    except (IndexError, ValueError, TypeError):
        story = f"the life itself failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-6000:]}"
    return Verdict(kind, seed, (), [story], time.monotonic() - began, {})


if __name__ == "__main__":
    sys.exit(main())
