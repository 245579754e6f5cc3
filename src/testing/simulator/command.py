"""`outrider sim`: simulates pools on virtual time, one per seed, and reports which promises were broken."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt  # noqa: TC002  cyclopts evaluates annotations
from cyclopts.validators import Number
from rich.console import Console
from rich.progress import track
from rich.table import Table

if TYPE_CHECKING:
    from .campaign import Tally, Wanted
    from .play import Played
    from .scenario import Scenario

MOST = 100_000  # the largest number of nodes that a pool may have
SHOWN = 3  # largest number of broken promises for which the smallest failing scenario is printed
TAIL = 30  # so many lines are printed from the end of a trace


def sim(
    *,
    seeds: PositiveInt | None = None,
    seed: int | None = None,
    nodes: Annotated[int, Parameter(validator=Number(gt=0, lte=MOST))] | None = None,
    span: PositiveFloat | None = None,
    tasks: Annotated[int, Parameter(validator=Number(gt=0, lte=1000 * MOST))] | None = None,
    storm: Annotated[float, Parameter(validator=Number(gt=0, lte=1))] | None = None,
    processes: PositiveInt | None = None,
    shrink: bool = True,
    trace: Path | None = None,
    report: Path | None = None,
) -> int:
    """Simulate pools, and check after every step that Outrider's promises hold.

    Each seed determines a pool, a cloud, the pool's work and its faults. The same seed always gives the same
    simulation, byte by byte.
    Example: `outrider sim --seeds 100`

    Parameters
    ----------
    seeds:
        How many seeds to simulate, beginning with 0 or --seed. Default: 100; 1 with --seed, --tasks or --storm.
    seed:
        The first seed.
    nodes:
        The number of nodes of every pool. Default: drawn at random.
    span:
        Simulated seconds in which jobs and faults begin. Default: drawn at random; 180 with --tasks or --storm.
    tasks:
        Give the pool so many single tasks, and no other work. Default: work drawn at random; with --storm, 10 tasks for
        each node.
    storm:
        The cloud takes this share of the nodes within a minute, such as 0.3. No other faults happen.
    processes:
        How many processes simulate at the same time. Default: one per core.
    shrink:
        Also search for the smallest scenario that breaks a promise.
    trace:
        Write every event of the simulation to this file. Only with one seed.
    report:
        Write the result to this file, as JSON.

    Returns
    -------
    int
        0: every promise held. 1: a promise was broken. 2: an option was wrong, and nothing was simulated.
    """
    from .campaign import Wanted

    wanted = Wanted(nodes, span, tasks, storm)
    console, first = Console(highlight=False), seed or 0
    count = seeds or (1 if seed is not None or wanted.storms else 100)
    if (refusal := _refusal(count, trace, report)) is not None:
        console.print(refusal, style="red", markup=False, soft_wrap=True)
        return 2
    if trace is not None:
        return _one(console, first, wanted, trace)
    return _many(console, range(first, first + count), wanted, processes, shrink=shrink, report=report)


def _refusal(count: int, trace: Path | None, report: Path | None) -> str | None:
    """Return why the simulation is refused; None: it is not refused.

    Creates the output files if they are missing, and keeps the content of existing ones.
    """
    if trace is not None and count != 1:
        return "--trace takes one seed: say which with --seed."
    written = trace or report
    try:
        if written is not None:
            written.open("a").close()
    except OSError as error:
        return f"{written} cannot be written: {error.strerror or error}."
    return None


# --- one seed ---------------------------------------------------------------------------------------------------------


def _one(console: Console, seed: int, wanted: Wanted, trace: Path) -> int:
    from .campaign import enough_s
    from .play import play

    scenario = wanted.scenario(seed)
    played = play(scenario, keep=None, enough_s=enough_s(scenario))
    trace.write_text("".join(f"{line}\n" for line in played.trace))
    _scenario(console, scenario)
    console.print(
        f"{played.simulated_s:,.0f} s in {played.wall_s:.2f} s, {len(played.trace):,} lines in {trace}, "
        f"digest {played.digest}"
    )
    if played.violation is not None:
        _broken(console, played)
        return 1
    console.print("[green]every promise held[/]")
    return 0


def _scenario(console: Console, scenario: Scenario) -> None:
    size = f"{scenario.nodes} nodes ({scenario.min} to {scenario.max}, {scenario.spare} spare)"
    console.print(f"seed {scenario.seed}: {size}, {scenario.slots} slots each, {len(scenario.jobs)} jobs")
    for fault in scenario.faults:
        console.print(f"  {_written(fault)}", markup=False)


def _written(value: Any) -> str:
    """Return a dataclass as code, without the fields that have their default."""
    values = ((each.name, getattr(value, each.name), each.default) for each in fields(value))
    shown = ", ".join(f"{name}={has!r}" for name, has, default in values if has != default)
    return f"{type(value).__name__}({shown})"


# --- many seeds -------------------------------------------------------------------------------------------------------


def _many(
    console: Console, seeds: range, wanted: Wanted, processes: int | None, *, shrink: bool, report: Path | None
) -> int:
    from .campaign import Tally, outcomes

    tally, began = Tally(), time.perf_counter()
    played = outcomes(seeds, wanted=wanted, processes=processes)
    shown = Console(stderr=True)
    for outcome in track(played, "seeds", total=len(seeds), console=shown, disable=not shown.is_terminal):
        tally.add(outcome)
    took_s = time.perf_counter() - began
    _show(console, tally, took_s)
    if report is not None:
        report.write_text(json.dumps(_as_json(tally, took_s), indent=1))
    if tally.broken:
        _explain(console, tally, wanted, shrink=shrink)
    return 1 if tally.broken else 0


def _show(console: Console, tally: Tally, took_s: float) -> None:
    from .rules.promises import PROMISES

    speed = tally.simulated_s / tally.played_s if tally.played_s else 0.0
    hours = f"{tally.simulated_s / 3600:,.1f} hours of {tally.machines:,} machines in {took_s:,.1f} s"
    console.print(f"{tally.seeds:,} seeds: {hours}, {speed:,.0f} times as fast as real time on each core")
    each_us = 1e6 * tally.played_s / max(1, tally.steps)
    console.print(f"{tally.steps:,} steps, and after each of them everything checked; {each_us:,.0f} us of a core each")
    lost, noticed = tally.events["node_lost"], tally.events["node_noticed"]
    console.print(
        f"{sum(tally.faults.values()):,} faults; {lost:,} nodes lost, {noticed:,} noticed; "
        f"{tally.generations:,} generations; {sum(tally.endings.values()):,} endings"
    )
    if tally.recoveries_s:
        ordered = sorted(tally.recoveries_s)
        p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        console.print(f"from a node's loss to the next generation: p50 {p50:.1f} s, p99 {p99:.1f} s (boots included)")
    console.print(f"digest {tally.digest}")
    table = Table(box=None, pad_edge=False)
    for column in ("promise", "", "broken by", "seeds"):
        table.add_column(column)
    for rule, promise in PROMISES.items():
        seeds = [seed for seed, broken in sorted(tally.broken.items()) if broken.rule == rule]
        style = "red" if seeds else "green"
        some = " ".join(map(str, seeds[:8])) + (" ..." if len(seeds) > 8 else "")
        table.add_row(f"[{style}]{rule}[/]", promise, f"[{style}]{len(seeds) or '-'}[/]", some)
    console.print(table)


def _explain(console: Console, tally: Tally, wanted: Wanted, *, shrink: bool) -> None:
    from .campaign import breaks, enough_s
    from .play import play
    from .shrink import shrink as smaller

    shown: set[str] = set()
    for seed, broken in sorted(tally.broken.items()):
        if broken.rule in shown or len(shown) == SHOWN:
            continue
        shown.add(broken.rule)
        scenario = wanted.scenario(seed)
        console.rule(f"seed {seed} breaks {broken.rule}", align="left")
        if shrink:
            least = smaller(scenario, breaks(broken.rule))
            console.print(
                f"{len(least.faults)} of its {len(scenario.faults)} faults and {len(least.jobs)} of its "
                f"{len(scenario.jobs)} jobs are enough:"
            )
            scenario = least
        _scenario(console, scenario)
        for job in scenario.jobs[:5]:
            console.print(f"  {_written(job)}", markup=False)
        _broken(console, play(scenario, keep=TAIL, enough_s=enough_s(scenario)))
        console.print(f"all of it: outrider sim --seed {seed}{wanted} --trace trace.txt")


def _broken(console: Console, played: Played) -> None:
    for line in list(played.trace)[-TAIL:]:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print(f"[red]{played.violation}[/]")


def _as_json(tally: Tally, took_s: float) -> dict[str, object]:
    summed = ("seeds", "simulated_s", "steps", "machines", "generations", "faults", "events", "endings", "digest")
    broken = {seed: broken._asdict() for seed, broken in sorted(tally.broken.items())}
    return {"took_s": took_s, **{name: getattr(tally, name) for name in summed}, "broken": broken}
