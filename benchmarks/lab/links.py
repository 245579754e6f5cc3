"""A gigabyte to a host and from it over links of some width, beside OpenSSH's own client over the same link.

On loopback the rate is what the processors can encrypt. Between computers it is mostly what the link carries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from bars.site import provider

from outrider import Image, Pool, Worker

from ..bulk.__main__ import MEMORY, ends, fill, made, rate
from ..bulk.host import CIPHER

if TYPE_CHECKING:
    from netlab import Host, Lab

    from outrider import Ref

    from ..bulk.__main__ import Array

MBITS = (1000, 2500)
MORE = 1.18  # times as long as OpenSSH's client: 0.85 of its rate
THERE = "/dev/shm/value"


class OpenSSH:
    """OpenSSH's own client, which moves files between this computer's memory and a host's."""

    def __init__(self, lab: Lab, host: Host, folder: Path) -> None:
        known = folder / "known_hosts"
        known.write_text(lab.known_hosts)
        self._words = ["ssh", "-F", "none", "-i", str(lab.key), "-o", f"UserKnownHostsFile={known}"]
        self._words += ["-o", f"Ciphers={CIPHER}", "-p", str(host.port), f"root@{host.address}"]
        self._source, self._sink = folder / "source", folder / "sink"

    def send(self) -> None:
        self.run(f"cat >{THERE}", source=self._source)

    def fetch(self) -> None:
        self.run(f"cat {THERE}", sink=self._sink)

    def run(self, command: str, *, source: Path | None = None, sink: Path | None = None) -> None:
        with (source or Path(os.devnull)).open("rb") as stdin, (sink or Path(os.devnull)).open("wb") as stdout:
            subprocess.run([*self._words, command], stdin=stdin, stdout=stdout, check=True, timeout=600)

    def took_s(self, size_bytes: int) -> dict[str, float]:
        """Return how long it takes to the host and from it, without what a login takes."""
        fill(self._source, size_bytes)
        login_s, to_s, from_s = (_seconds(each) for each in (partial(self.run, "true"), self.send, self.fetch))
        self.run(f"rm {THERE}")
        self._sink.unlink()
        return {"to": to_s - login_s, "from": from_s - login_s}


async def beside_openssh(lab: Lab, size_bytes: int, rounds: int) -> dict[str, list[float]]:
    """Return how long it takes a pool, over what it takes OpenSSH's client, by the way and the link's width."""
    [host] = lab.create_many(1)
    seen: dict[str, list[float]] = {}
    with TemporaryDirectory(dir=MEMORY) as folder:
        openssh = OpenSSH(lab, host, Path(folder))
        worker = Worker(1, object_memory_gb=size_bytes / 1e9, object_disk_gb=0)
        ours: dict[str, Any] = {"provider": provider(lab, [host]), "image": Image(python=sys.executable)}  # with NumPy
        async with Pool(**ours, nodes=1, worker=worker, console="silent") as pool:
            kept: Ref[Array] = await pool.run(made(7.0, size_bytes), keep=True)
            for mbit in MBITS:
                host.limit_bandwidth(up_mbit=mbit, down_mbit=mbit)
                for number in range(rounds):
                    call = ends(np.full(size_bytes // 8, mbit + float(number)))  # nodes remember what they were sent
                    ours_s = {"to": size_bytes / await rate(size_bytes, partial(pool.run, call))}
                    ours_s["from"] = size_bytes / await rate(size_bytes, kept.get)
                    for way, theirs_s in openssh.took_s(size_bytes).items():
                        seen.setdefault(name(way, mbit), []).append(ours_s[way] / theirs_s)
    return seen


def name(way: str, mbit: int) -> str:
    return f"1 GB {way} a host at {mbit / 1000:g} Gbit/s, to OpenSSH's client"


def _seconds(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began
