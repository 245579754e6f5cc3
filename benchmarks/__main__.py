"""``python -m benchmarks``: every figure in one run against ProcessPoolExecutor(4), torchrun, and steps unsaved."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from outrider import Local, Pool

from .arrays import arrays
from .beside import calls_beside, ddp_beside
from .calls import brief, broadcast, burst, latency, mapped
from .ddp import ddp
from .figures import Figure
from .processes import idle, start
from .records import records
from .states import states

OUT = Path(__file__).parent / "out"
Measure = Callable[[Pool, ProcessPoolExecutor, int], Awaitable[list[Figure]]]
IN_POOL: dict[str, Measure] = {
    "b": latency,
    "c": burst,
    "t": brief,
    "map": mapped,
    "d": broadcast,
    "e": arrays,
    "busy": calls_beside,
}
NAMES = ["a", "h", *IN_POOL, "r", "ddp", "busy-ddp", "states"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", metavar="FIGURE", help=f"some of {', '.join(NAMES)}; default: all")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds per figure")
    options = parser.parse_args()
    chosen = options.only or NAMES
    if unknown := set(chosen) - set(NAMES):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")

    figures: list[Figure] = []
    if "a" in chosen:
        figures += start(options.rounds)
    if "h" in chosen:
        figures += idle()
    if wanted := [IN_POOL[name] for name in IN_POOL if name in chosen]:
        figures += in_pools(wanted, options.rounds)
    if "r" in chosen:
        figures += records(options.rounds)
    if "ddp" in chosen:
        figures += ddp()
    if "busy-ddp" in chosen:
        figures += ddp_beside()
    if "states" in chosen:
        figures += states()
    Console(width=None if sys.stdout.isatty() else 120).print(table(figures))
    path = write(figures)
    print(f"written to {path}")
    return 0 if all(figure.holds is not False for figure in figures) else 1


def in_pools(measures: list[Measure], rounds: int) -> list[Figure]:
    """The executor pool forks its workers before anything of ours is running."""

    async def ours() -> list[Figure]:
        async with Pool(provider=Local(), nodes=4, console="silent") as pool:
            return [figure for measure in measures for figure in await measure(pool, executor, rounds)]

    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as executor:
        for future in [executor.submit(time.sleep, 0.05) for _ in range(4)]:
            future.result()
        return anyio.run(ours)


def table(figures: list[Figure]) -> Table:
    result = Table(title="Outrider, four local nodes, against ProcessPoolExecutor(4)", title_justify="left")
    result.add_column("figure")
    for heading in ("ours", "theirs", "ratio (range)"):
        result.add_column(heading, justify="right")
    result.add_column("bar")
    result.add_column("holds")
    for figure in figures:
        theirs = "" if figure.theirs is None else number(figure.theirs, figure.unit)
        ratio = ""
        if figure.ratio is not None and figure.ratio_range is not None:
            ratio = f"{figure.ratio:.2f} ({figure.ratio_range[0]:.2f}-{figure.ratio_range[1]:.2f})"
        bar = ""
        if figure.bar is not None:
            value = number(figure.bar.value, figure.unit) if figure.bar.of == "ours" else f"{figure.bar.value:g} x"
            bar = f"{figure.bar.must_be} {value}" + (f", goal {figure.bar.goal:g}" if figure.bar.goal else "")
        holds = {None: "", True: "[green]yes", False: "[bold red]NO"}[figure.holds]
        result.add_row(figure.name, number(figure.ours, figure.unit), theirs, ratio, bar, holds)
    return result


def number(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def write(figures: list[Figure]) -> Path:
    OUT.mkdir(exist_ok=True)
    path = OUT / "benchmarks.json"
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()}
    software = {name: version(name) for name in ("outrider", "asyncssh", "msgpack", "cloudpickle", "anyio", "numpy")}
    rows = [asdict(figure) | {"holds": figure.holds} for figure in figures]
    facts = {"at": time.time(), "python": platform.python_version(), "machine": machine, "software": software}
    path.write_text(json.dumps(facts | {"figures": rows}, indent=2) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
