"""From bare Debian to the first results of all hosts: cold, warm, and four times as many hosts."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from bars.site import provider
from netlab import Host, Lab, PackageIndex, debian, write_wheel

from outrider import Image, Pool, compute

COLD_S, WARM_S = 20.0, 4.0
MORE = 1.5  # times as long as four hosts, for sixteen
SHARE = 0.1  # of a core, for each machine: seventeen of them fit into two


@compute
def imported(names: Sequence[str]) -> int:
    return len([importlib.import_module(name) for name in names])


class Opened(NamedTuple):
    """A pool of so many hosts, from nothing to every host's first result."""

    hosts: int
    state: str  # cold: nothing is there; warm: all of it
    took_s: float


async def opened(lab: Lab, hosts: Sequence[Host], image: Image, names: Sequence[str], state: str) -> Opened:
    """The first result has imported what the image brings."""
    began = time.monotonic()
    async with Pool(provider=provider(lab, hosts), nodes=len(hosts), image=image, console="silent") as pool:
        assert await pool.broadcast(imported(list(names))) == [len(names)] * len(hosts)
        return Opened(len(hosts), state, time.monotonic() - began)


async def cold_and_warm(
    lab: Lab,
    folder: Path,
    pip: Sequence[str],
    *,
    distance_s: float = 0.0,
    cores: float | None = None,
    counts: Sequence[int] = (4, 16),
) -> list[Opened]:
    """``folder`` of wheels is the index that hosts have; empty ``pip``: a small package of our own.

    ``cores``: of each host, and of the client. Sixteen hosts on two cores are four times the work of four: only where
    each machine has a part for itself does it show what more of them cost.
    """
    if not pip:
        write_wheel(folder, "far-away", "1.0", {"far_away.py": "DISTANCE = 7\n"})
    wanted = list(pip) or ["far-away"]
    names = [each.partition("=")[0].replace("-", "_") for each in wanted]
    seen: list[Opened] = []
    with PackageIndex(lab.address, folder) as index:
        image = Image(pip=wanted, pip_indexes=[index.url])
        for count in counts:
            made = lab.create_many(count, lower=debian())
            for host in made:
                host.limit_cores(cores)
                if distance_s:
                    host.distance(delay_s=distance_s)
            with nullcontext() if cores is None else lab.limited_cores(cores):
                seen += [await opened(lab, made, image, names, state) for state in ("cold", "warm")]
            for host in made:
                host.destroy()
    return seen


def ratio(seen: Sequence[Opened], state: str) -> float:
    """Sixteen hosts' time to four's."""
    times = {each.hosts: each.took_s for each in seen if each.state == state}
    return times[16] / times[4]
