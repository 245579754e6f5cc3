"""``python -m localchaos``: life after life, each drawn from its seed; stops at the first that is not right.

A life is a client that works on a local pool, in a process of its own, while its processes are killed, stopped and kept
short of descriptors and disk. Every call has a known answer; afterwards nothing may be left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from outrider.providers.local.processes import mount_unseen

from . import report
from .life import Alive
from .plan import DRAWN, draw
from .referee import SETTLED, judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="localchaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first life's; each further one has the next number")
    parser.add_argument("--seeds", type=int, help="how many lives; default: as many as there is time for, or one")
    parser.add_argument("--minutes", type=float, help="no further life is begun after so long")
    parser.add_argument("--only", choices=DRAWN, metavar="FAULT", help=f"no other fault than this: {', '.join(DRAWN)}")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a life that is not right")
    options = parser.parse_args()
    # After `nohup make chaos &` these are ignored, and programs inherit that: clients are to hear them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if os.geteuid() == 0:
        mount_unseen()  # small disks, which go with this process
    seeds = options.seeds or (1 if options.minutes is None else sys.maxsize)
    until = time.monotonic() + 60 * options.minutes if options.minutes is not None else float("inf")
    totals: Counter[str] = Counter()
    wrong_seeds: dict[int, list[str]] = {}
    for seed in range(options.seed, options.seed + seeds):
        if time.monotonic() >= until:
            break
        totals["lives"] += 1
        if wrong := live(seed, options.only, totals):
            wrong_seeds[seed] = wrong
            if not options.keep_going:
                break
    print(f"{', '.join(f'{count} {what}' for what, count in totals.items())}", flush=True)
    for seed, wrong in wrong_seeds.items():  # again, because logs are often cut to their last lines
        print(f"not right: seed {seed}: {'; '.join(wrong)}")
    return 1 if wrong_seeds else 0


def live(seed: int, only: str | None, totals: Counter[str]) -> list[str]:
    """What was wrong in this life. If anything was, its folder is kept."""
    life = draw(seed, only)
    folder = Path(tempfile.mkdtemp(prefix=f"outrider-chaos-{seed}-"))
    alive = Alive(life, folder)
    began = time.monotonic()
    found = alive.run()
    journal = alive.journal.entries
    wrong = judge(life, journal, found)
    print(report.line(life, journal, found, seconds=time.monotonic() - began), flush=True)
    totals.update(entry["what"] for entry in journal if entry["what"] in SETTLED)
    totals["faults"] += sum(not text.startswith(("left", "there")) for _, text in alive.log)
    if not wrong:
        shutil.rmtree(folder)
        return []
    again = f"make chaos SEED={seed} SEEDS=1{f' ONLY={only}' if only else ''}"
    text = report.failure(life, journal, alive.log, wrong, again=again, logs=str(folder))
    (folder / "report").write_text(text + "\n")
    print(text, flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
