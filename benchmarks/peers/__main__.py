"""``python -m benchmarks.peers``: the same work on each system, one after the other, in rounds; tables and a plot.

A system runs only while it is measured: one that idles beside another takes time from it. Each has the Python and the
pinned packages of an environment of its own, under ``.venv-peers``, which is made when it is lacking.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .page import ROWS, publish, results, store, table

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-peers"
PEERS = {
    "outrider": [],
    "executor": [],
    "ray": ["ray==2.60.0"],
    "dask": ["dask==2026.8.0", "distributed==2026.8.0"],
    "parsl": ["parsl==2026.10.26"],
    "monarch": ["torchmonarch==0.7.0"],
}
PATIENCE_S = 300.0  # for one measurement
ORDERS = {"noop": 300, "broadcast": 100, "burst": 10_000, "to": 5, "from": 5}


class Failed(Exception):
    """A system ended, or did not answer."""


class Running:
    """A driver's process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._began = time.time()
        self._process = subprocess.Popen(
            [python(name), "-m", f"drivers.{name}"],
            cwd=HERE,
            env={  # Parsl has programs of its own, and its workers import what a function is of
                **os.environ,
                "PATH": f"{Path(python(name)).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(HERE),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def first(self) -> tuple[float, str]:
        """Return the seconds until the first result, and the system's version."""
        said = self._hear()
        return float(said["first"]) - self._began, str(said["version"])

    def measure(self, name: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"measure": name, "count": ORDERS[name]}) + "\n")
        self._process.stdin.flush()
        return float(self._hear()["value"])

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"{self.name} ended with status {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said


def python(name: str) -> str:
    return str(ENVIRONMENTS / name / "bin/python") if PEERS[name] else sys.executable


def prepare(name: str) -> None:
    """Make a system's environment, unless it is there."""
    folder = ENVIRONMENTS / name
    if not PEERS[name] or (folder / ".made").exists():
        return
    print(f"{name}: making {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([python(name), "-m", "pip", "install", "--quiet", "numpy==2.3.5", *PEERS[name]], check=True)
    (folder / ".made").touch()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="SYSTEM", help=f"some of {', '.join(PEERS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", action="store_true", help="measure nothing: write the pages from the stored results")
    options = parser.parse_args(argv)
    if options.pages:
        publish()
        return 0
    names = options.only or [*PEERS]
    if unknown := {*names} - {*PEERS}:
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    for name in names:
        prepare(name)
    found: dict[str, dict[str, list[float]]] = {name: {row: [] for row in ROWS} for name in names}
    versions: dict[str, str] = {}
    for number in range(options.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            running = Running(name)
            try:
                first_s, versions[name] = running.first()
                found[name]["first"].append(first_s)
                for row in ORDERS:
                    found[name][row].append(running.measure(row))
            except Failed as failed:
                print(failed, file=sys.stderr)
            finally:
                running.stop()
            told = ", ".join(f"{row} {values[-1]:.4g}" for row, values in found[name].items() if values)
            print(f"round {number + 1} of {options.rounds}: {name}: {told}", flush=True)
    measured = results(found, versions, rounds=options.rounds)
    if names == [*PEERS]:
        store(measured)
        publish()
    else:  # some columns of another day would not belong to the others
        print(table(measured))
    slower = [
        f"{ROWS[row].name}: {name}"
        for row in ROWS
        for name in names
        if name != "outrider" and "outrider" in names and found[name][row] and found["outrider"][row]
        if ROWS[row].better(statistics.median(found[name][row]), statistics.median(found["outrider"][row]))
    ]
    print("ahead of Outrider: " + ("; ".join(slower) or "nobody"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
