"""``python -m benchmarks.lab``: each bar of the guarantees' table on real hosts, with p50 and p99; a table and JSON.

loss      each way of losing a machine, at once in one pool          --rounds times       about 20 s each
notice    a notice, and one that is withdrawn                        --rounds times       about 6 s each
world     a gloo all-reduce of 4 ranks loses any rank                --worlds times       about 15 s each
cut       a client cut off for --cut seconds, then for good                               about 3 minutes
back      a node comes back when it has been replaced                once
storm     5 % loss and stalls of 3 s for --storm seconds                                  half an hour
image     an image on bare hosts, cold and warm: 1, 4 and 16         --rounds times       about 20 s each
machines  64 of a test cloud; with refusals and deaf hosts; cold      --repeats times      about 2 minutes each
slurm     a Slurm node beside a plain login to it; 4 and 32 of them  --repeats times      about 2 minutes each
links     1 GB over 1 and 2.5 Gbit/s, beside OpenSSH's own client    --repeats times      about 2 minutes each
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from rich.console import Console
from rich.table import Table

from .figures import Figure, Series

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "lab"))  # netlab and the scenarios: they are no tests

from bars import cuts, losses, notices, weather, worlds  # noqa: E402 - found through the line above
from cluster.needs import missing as cluster_lacks  # noqa: E402
from netlab import Lab, missing  # noqa: E402

from . import images, links, machines, slurm  # noqa: E402 - they need netlab

OUT = Path(__file__).parents[1] / "out"


def lab() -> Lab:
    return Lab(visible=(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)))


async def loss(options: argparse.Namespace) -> list[Figure]:
    seen = Series()
    faults = {**losses.SILENT, **losses.CLOSED}
    for number in range(options.rounds):
        with lab() as hosts:
            for how, took in (await losses.process_dies(hosts, times=5)).items():
                for died_s in took:
                    seen.add(f"a task's process: {how}", died_s)
        with lab() as hosts:
            for name, each in (await losses.machines_go(hosts, faults)).items():
                seen.add(f"{name}: suspected", each.suspected_s)
                seen.add(f"{name}: lost", each.lost_s)
        with lab() as hosts:
            lost_s, _ = await losses.only_node_goes(hosts, losses.SILENT["power off, cloud"], hosts=2)
            seen.add("a pool's only node: lost", lost_s)
        say(f"loss {number + 1}/{options.rounds}")
    bars = {
        **{f"a task's process: {how}": losses.PROCESS_S for how in ("exit", "kill", "segv")},
        **{f"{name}: suspected": losses.CLOSED_S for name in losses.CLOSED},
        f"{losses.KILLED}: lost": losses.CLOSED_S,
        **{f"{name}: lost": losses.SILENT_S for name in losses.SILENT},
        "a pool's only node: lost": losses.SILENT_S,
    }
    return [seen.figure(name, bar_s=bar_s) for name, bar_s in bars.items()]


async def notice(options: argparse.Namespace) -> list[Figure]:
    seen = Series()
    for number in range(options.rounds):
        with lab() as hosts:
            acted = await notices.notice(hosts)
        for name, value in acted._asdict().items():
            seen.add(f"notice: {name}", value)
        with lab() as hosts:
            seen.add("notice: withdrawn, back in service", await notices.withdrawn(hosts))
        say(f"notice {number + 1}/{options.rounds}")
    names = ("told", "noticed", "requested", "withdrawn, back in service")
    return [
        *(seen.figure(f"notice: {name}", bar_s=notices.ACTED_S) for name in names),
        seen.figure("notice: replaced"),
    ]


async def world(options: argparse.Namespace) -> list[Figure]:
    """A pool serves for 20 losses: a host's disk is memory, and is not cleared by a power cut."""
    seen = Series()
    done = 0
    while done < options.worlds:
        with lab() as hosts:
            times = min(20, options.worlds - done)
            for each in await worlds.broadcasts(hosts, times, seed=options.seed + done, told=say):
                seen.add("rank lost: ended right, within", each.took_s)
                if each.to_seen_s is not None and each.to_running_s is not None:
                    seen.add(f"rank lost: {each.fault}: seen", each.to_seen_s)
                    seen.add("rank lost: seen to all ranks' first line", each.to_running_s)
        done += times
    return [
        seen.figure("rank lost: seen to all ranks' first line", bar_s=worlds.RUNNING_S, of="median"),
        *(seen.figure(f"rank lost: {fault}: seen", bar_s=bar_s) for fault, bar_s in worlds.SEEN_S.items()),
        seen.figure("rank lost: ended right, within"),
    ]


async def cut(options: argparse.Namespace) -> list[Figure]:
    seen = Series()
    name, emptied = f"client cut off for {options.cut:g} s: all results after", "client cut off for good: host empty"
    for nodes in (1, 4):
        with lab() as hosts:
            seen.add(name, await cuts.client_cut_off(hosts, nodes=nodes, for_s=options.cut))
        say(f"cut, {nodes} nodes")
    with lab() as hosts:
        for took in (await cuts.client_cut_off_for_good(hosts, lease_s=options.lease, nodes=4)).values():
            seen.add(emptied, took)
    return [seen.figure(name, bar_s=cuts.HEARD_S), seen.figure(emptied, bar_s=options.lease + cuts.ENDED_S)]


async def back(options: argparse.Namespace) -> list[Figure]:
    seen = Series()
    for _ in range(min(3, options.rounds)):
        with lab() as hosts:
            seen.add("old node back: nothing left of it", await cuts.old_node_returns(hosts))
    return [seen.figure("old node back: nothing left of it", bar_s=cuts.HEARD_S)]


async def storm(options: argparse.Namespace) -> list[Figure]:
    with lab() as hosts:
        seen = await weather.storm(hosts, lasts_s=options.storm, seed=options.seed)
    say(f"storm: {seen}")
    return [Figure("5 % loss, stalls of 3 s: no death in", (seen.lasted_s,), facts=seen._asdict())]


async def image(options: argparse.Namespace) -> list[Figure]:
    seen = Series()
    what = " ".join(options.pip) or "a small package"
    for number in range(options.rounds):
        told: list[list[images.Opened]] = []
        for cores in (None, images.SHARE):
            with lab() as hosts, TemporaryDirectory() as folder:
                wheels = Path(options.wheels or folder)
                told.append(
                    await images.cold_and_warm(hosts, wheels, options.pip, distance_s=options.distance, cores=cores)
                )
        shared, own = told
        for each in shared:
            seen.add(f"{each.hosts} {each.state}", each.took_s)
        for state in ("cold", "warm"):
            seen.add(state, images.ratio(own, state))
        say(f"image {number + 1}/{options.rounds}: {shared}; each with {images.SHARE:g} of a core: {own}")
    bars = {"4 cold": images.COLD_S, "4 warm": images.WARM_S}
    return [
        *(
            Figure(f"{name} hosts, bare: {what}", tuple(seen.seconds[name]), bars.get(name), "median")
            for name in ("4 cold", "4 warm", "16 cold", "16 warm")
        ),
        *(
            Figure(f"16 hosts to 4, {state}", tuple(seen.seconds[state]), images.MORE, "median", unit="x")
            for state in ("cold", "warm")
        ),
    ]


async def cloud(options: argparse.Namespace) -> list[Figure]:
    seen, name = Series(), f"{options.machines} machines ready"
    for number in range(options.repeats):
        with lab() as hosts:
            calm = await machines.opened(hosts, nodes=options.machines)
        with lab() as hosts:
            troubled = await machines.opened(hosts, nodes=options.machines, trouble=True)
        with lab() as hosts:
            cold = await machines.opened(hosts, nodes=options.machines, warm=False)
        seen.add(name, calm.ready_s)
        seen.add(f"{name}: with trouble", troubled.ready_s / calm.ready_s)
        seen.add(f"{name}: cold", cold.ready_s)
        say(f"machines {number + 1}/{options.repeats}: {calm}, with trouble {troubled}, cold {cold}")
    return [
        seen.figure(name, bar_s=machines.READY_S, of="median"),
        seen.figure(f"{name}: with trouble", bar_s=machines.TROUBLE, of="median", unit="x"),
        seen.figure(f"{name}: cold"),
    ]


async def a_cluster(options: argparse.Namespace) -> list[Figure]:
    seen = Series()
    few_to_many = f"{slurm.MANY} Slurm nodes ready, to {slurm.FEW}"
    for number in range(options.repeats):
        with lab() as hosts:
            for name, ratios in (await slurm.beside_ssh(hosts, rounds=3)).items():
                for ratio in ratios:
                    seen.add(name, ratio)
        with lab() as hosts:
            took = await slurm.few_and_many(hosts)
        seen.add(few_to_many, took[slurm.MANY] / took[slurm.FEW])
        say(f"slurm {number + 1}/{options.repeats}: {took}")
    bars = {
        "call by ssh, to SSH": slurm.CALL_BY_SSH,
        "call by srun, to SSH": slurm.CALL_BY_SRUN,
        few_to_many: slurm.MORE,
    }
    return [
        seen.figure(name, bar_s=bars.get(name, slurm.LARGE), of="median", unit="x") for name in sorted(seen.seconds)
    ]


async def narrow_links(options: argparse.Namespace) -> list[Figure]:
    with lab() as hosts:
        took = await links.beside_openssh(hosts, 10**9, options.repeats)
    say(f"links: {took}")
    return [Figure(name, tuple(ratios), links.MORE, "median", unit="x") for name, ratios in took.items()]


MEASURES: dict[str, Callable[[argparse.Namespace], Awaitable[list[Figure]]]] = {
    "loss": loss,
    "notice": notice,
    "world": world,
    "cut": cut,
    "back": back,
    "storm": storm,
    "image": image,
    "machines": cloud,
    "slurm": a_cluster,
    "links": narrow_links,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", metavar="WHAT", help=f"some of {', '.join(MEASURES)}; default: all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--cut", type=float, default=60.0, metavar="S")
    parser.add_argument("--lease", type=float, default=20.0, metavar="S")
    parser.add_argument("--storm", type=float, default=1800.0, metavar="S")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pip", nargs="*", default=[], metavar="PACKAGE", help="for `image`; default: a small one")
    parser.add_argument("--wheels", metavar="FOLDER", help="for `image`: where those packages and what they need are")
    parser.add_argument("--distance", type=float, default=0.0, metavar="S", help="for `image`: one way to each host")
    options = parser.parse_args()
    if unknown := set(options.only) - set(MEASURES):
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    if lacks := missing() + (cluster_lacks() if "slurm" in (options.only or MEASURES) else []):
        print(f"no lab on this machine: {'; '.join(lacks)}")
        return 2
    figures: list[Figure] = []
    for name in options.only or MEASURES:
        figures += anyio.run(MEASURES[name], options)
        path = write(figures, options)  # what there is, should a later one fail
    Console(width=None if sys.stdout.isatty() else 120).print(table(figures))
    print(f"written to {path}")
    return 0 if all(figure.holds is not False for figure in figures) else 1


def table(figures: list[Figure]) -> Table:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    result = Table(title=f"Losses on the lab's hosts ({os.cpu_count()} cores, load {load})", title_justify="left")
    result.add_column("what")
    for heading in ("n", "p50", "p99", "most"):
        result.add_column(heading, justify="right")
    result.add_column("bar")
    result.add_column("holds")
    for figure in figures:
        result.add_row(*figure.row())
    return result


def write(figures: list[Figure], options: argparse.Namespace) -> Path:
    OUT.mkdir(exist_ok=True)
    path = OUT / "lab.json"
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()}
    rows = [asdict(each) | {"p50": each.p50, "p99": each.p99, "holds": each.holds} for each in figures if each.seconds]
    facts = {"at": time.time(), "python": platform.python_version(), "machine": machine, "options": vars(options)}
    path.write_text(json.dumps(facts | {"figures": rows}, indent=2) + "\n")
    return path


def say(story: object) -> None:
    print(f"{time.strftime('%H:%M:%S')} {story}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
