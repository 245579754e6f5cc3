"""NVIDIA's own tools on a node: run, and their answers read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ..api.errors import SpecError

PATIENCE_S = 60.0  # to enable MIG resets the GPU, which takes seconds
GPU_QUERY = ("--query-gpu=index,uuid,name,mig.mode.current,mig.mode.pending", "--format=csv,noheader")


class ToolFailed(Exception):
    """A tool's exit status was not 0; what it printed."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str  # without the maker: "H100 80GB HBM3"
    mig: str  # "Enabled", "Disabled" or "[N/A]"
    pending: str  # the same, after the next reset


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of MIG instance that a GPU can be divided into."""

    name: str  # "1g.10gb"
    id: int
    free: int
    total: int
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG device."""

    profile: str
    uuid: str


def tool(name: str) -> str:
    """Its path.

    Raises:
        SpecError: it is not there.
    """
    found = shutil.which(name)
    if found is None:
        raise SpecError(f"{name} is not on this node's PATH: it comes with NVIDIA's driver, which the node needs.")
    return found


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """What it printed.

    Raises:
        SpecError: it is not there.
        ToolFailed
    """
    done = subprocess.run(  # noqa: S603
        [tool(name), *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode != 0:
        raise ToolFailed(f"{name} {' '.join(arguments)}: {done.stdout.strip()}")
    return done.stdout


def gpus() -> list[Gpu]:
    """Those that ``CUDA_VISIBLE_DEVICES`` leaves this node."""
    found = []
    for line in run("nvidia-smi", *GPU_QUERY).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            found.append(Gpu(int(cells[0]), cells[1], cells[2].removeprefix("NVIDIA "), cells[3], cells[4]))
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(found: Sequence[Gpu], chosen: str | None) -> list[Gpu]:
    """As CUDA reads it: in that order, up to the first that there is not."""
    if chosen is None:
        return list(found)
    left: list[Gpu] = []
    for name in (part.strip() for part in chosen.split(",")):
        named = [gpu for gpu in found if name == str(gpu.index) or (name[:4] == "GPU-" and gpu.uuid.startswith(name))]
        if len(named) != 1 or named[0] in left:
            break
        left += named
    return left


def profiles(table: str) -> list[Profile]:
    """From ``nvidia-smi mig -lgip``: ``|   0  MIG 1g.10gb   19   7/7   9.75   No ...``, and a second line each."""
    rows = re.finditer(r"\|\s+\d+\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+(\d+(?:\.\d+)?)\s", table)
    return [Profile(row[1], int(row[2]), int(row[3]), int(row[4]), float(row[5])) for row in rows]


def instances(table: str) -> list[int]:
    """The GPU instances of ``nvidia-smi mig -lgi``, by id; none of a table that says there are none."""
    return [int(row[1]) for row in re.finditer(r"\|\s+\d+\s+MIG \S+\s+\d+\s+(\d+)\s+\d+:\d+\s+\|", table)]


def created(said: str) -> list[int]:
    """The ids of what ``nvidia-smi mig -cgi ... -C`` has made."""
    return [int(row[1]) for row in re.finditer(r"created GPU instance ID\s+(\d+) on GPU", said)]


def slices(listing: str) -> dict[str, list[Slice]]:
    """From ``nvidia-smi -L``: each GPU's MIG devices, by the GPU's UUID."""
    found: dict[str, list[Slice]] = {}
    of: list[Slice] = []
    for line in listing.splitlines():
        if gpu := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            of = found.setdefault(gpu[1], [])
        elif device := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line):
            of.append(Slice(device[1], device[2]))
    return found
