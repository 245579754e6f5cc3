"""``python -m benchmarks.scale``: what 10, 100 and 1,000 nodes cost their client; a table and JSON.

The nodes are connections to one process on this computer that answers at once. They are reached by a unix socket, as
local nodes are, and by SSH, as rented ones. Each measurement is a client process of its own, and its processor time and
memory are this client's alone. Seconds and rates include the process that answers, on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .client import Scale

OUT = Path(__file__).parents[1] / "out"
HEADINGS = {
    "ready_s": "ready, s",
    "joining_cpu_ms": "joining: CPU ms/node",
    "kib": "KiB/node",
    "idle_cpu_percent": "idle: % of a core",
    "broadcast_ms": "broadcast, ms",
    "broadcast_cpu_us": "CPU us/rank",
    "call_us": "no-op, us",
    "submits_per_s": "20,000 submits, /s",
    "submit_cpu_us": "CPU us/task",
    "close_s": "close, s",
    "close_cpu_ms": "CPU ms/node",
}
LARGE = 1_000  # nodes, for which the bars are
BARS = {"ready_s": 5.0, "kib": 70.0, "idle_cpu_percent": 6.0, "broadcast_ms": 100.0}  # at most
RATE, GROWTH = 10_000, 1.3  # submits per second at least; and of processor time per task, from the fewest nodes


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[10, 100, LARGE])
    parser.add_argument("--way", choices=["unix", "ssh"], help="default: both")
    options = parser.parse_args()
    ways = [options.way] if options.way else ["unix", "ssh"]
    found = {way: [measured(nodes, way) for nodes in sorted(options.nodes)] for way in ways}
    console = Console(width=None if sys.stdout.isatty() else 160)
    for way, scales in found.items():
        console.print(table(way, scales))
        for missed in misses(scales):
            console.print(f"[bold red]{way}: {missed}")
    OUT.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()}
    rows = {way: [asdict(scale) for scale in scales] for way, scales in found.items()}
    path = OUT / "scale.json"
    path.write_text(json.dumps({"at": time.time(), "machine": machine, "figures": rows}, indent=2) + "\n")
    print(f"written to {path}")
    return 1 if any(misses(scales) for scales in found.values()) else 0


def measured(nodes: int, way: str) -> Scale:
    client = [sys.executable, "-m", "benchmarks.scale.client", str(nodes), *(["--ssh"] if way == "ssh" else [])]
    done = subprocess.run(client, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return Scale(**json.loads(done.stdout.splitlines()[-1]))


def table(way: str, scales: list[Scale]) -> Table:
    result = Table(title=f"So many nodes, reached by {way}", title_justify="left")
    result.add_column("")
    for scale in scales:
        result.add_column(f"{scale.nodes:,}", justify="right")
    for each in fields(Scale)[1:]:
        result.add_row(HEADINGS[each.name], *(number(getattr(scale, each.name)) for scale in scales))
    return result


def misses(scales: list[Scale]) -> list[str]:
    """Say which bars are missed with so many nodes as they are for."""
    few, many = scales[0], scales[-1]
    if many.nodes != LARGE:
        return []
    missed = [f"{HEADINGS[name]}: at most {number(bar)}" for name, bar in BARS.items() if getattr(many, name) > bar]
    if many.submits_per_s < RATE:
        missed.append(f"{HEADINGS['submits_per_s']}: at least {RATE:,}")
    if many.submit_cpu_us > GROWTH * few.submit_cpu_us:
        growth = many.submit_cpu_us / few.submit_cpu_us
        missed.append(f"{HEADINGS['submit_cpu_us']}: {growth:.2f} times that of {few.nodes} nodes; at most {GROWTH}")
    return missed


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
