"""From bare Debian to the first results of all hosts: cold, warm, and four times as many hosts."""

from __future__ import annotations

import importlib
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bars.site import provider
from netlab import Host, Lab, PackageIndex, debian, write_wheel

from outrider import Image, Pool, compute

COLD_S, WARM_S = 20.0, 4.0
MORE = 1.5  # times as long as four hosts, for sixteen


@compute
def imported(names: Sequence[str]) -> int:
    return len([importlib.import_module(name) for name in names])


class Opened(NamedTuple):
    """A pool of so many hosts, from nothing to every host's first result."""

    hosts: int
    state: str  # cold: nothing is there; warm: all of it
    took_s: float
    client_s: float  # of a core, for the client alone


async def opened(lab: Lab, hosts: Sequence[Host], image: Image, names: Sequence[str], state: str) -> Opened:
    """The first result has imported what the image brings."""
    began, used = time.monotonic(), cpu_s()
    async with Pool(provider=provider(lab, hosts), nodes=len(hosts), image=image, console="silent") as pool:
        assert await pool.broadcast(imported(list(names))) == [len(names)] * len(hosts)
        return Opened(len(hosts), state, time.monotonic() - began, cpu_s() - used)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def cold_and_warm(
    lab: Lab, folder: Path, pip: Sequence[str], *, distance_s: float, counts: Sequence[int] = (1, 4, 16)
) -> list[Opened]:
    """``folder`` of wheels is the index that hosts have; empty ``pip``: a small package of our own."""
    if not pip:
        write_wheel(folder, "far-away", "1.0", {"far_away.py": "DISTANCE = 7\n"})
    wanted = list(pip) or ["far-away"]
    names = [each.partition("=")[0].replace("-", "_") for each in wanted]
    seen: list[Opened] = []
    with PackageIndex(lab.address, folder) as index:
        image = Image(pip=wanted, pip_indexes=[index.url])
        for count in counts:
            made = lab.create_many(count, lower=debian())
            if distance_s:
                for host in made:
                    host.distance(delay_s=distance_s)
            seen += [await opened(lab, made, image, names, state) for state in ("cold", "warm")]
            for host in made:
                host.destroy()
    return seen


def with_cores_of_their_own(seen: Sequence[Opened], state: str) -> float:
    """Sixteen hosts' time to four's, if hosts shared no cores with each other: what one takes, and the client's part.

    Here they all share this machine's, so that four times as many hosts are four times the work.
    """
    times = {each.hosts: each for each in seen if each.state == state}
    alone, per_host = times[1].took_s, times[16].client_s / 16
    return (alone + 15 * per_host) / (alone + 3 * per_host)
