"""Run NVIDIA's tools on a node, and parse their output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from ...lazy_dataclass import dataclass
from ..api.errors import SpecError

PATIENCE_S = 60.0  # time limit of a tool: enabling MIG resets the GPU, which takes seconds
GPU_QUERY = ("--query-gpu=index,uuid,name,mig.mode.current,mig.mode.pending", "--format=csv,noheader")


class ToolFailed(Exception):
    """An error of a tool whose exit status was not 0; the message is the tool's output."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str  # name without "NVIDIA", such as "H100 80GB HBM3"
    mig: str  # MIG mode: "Enabled", "Disabled" or "[N/A]"
    pending: str  # MIG mode after the next reset


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of MIG instance that a GPU can be divided into."""

    name: str  # such as "1g.10gb"
    id: int
    free: int
    total: int
    memory_gb: float


@dataclass(frozen=True, slots=True)
class Slice:
    """One MIG device."""

    profile: str
    uuid: str


def tool(name: str) -> str:
    """Return the path of a tool.

    Raises:
        SpecError: the tool is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise SpecError(f"{name} is not on this node's PATH: it comes with NVIDIA's driver, which the node needs.")
    return path


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """Run a tool; return its output.

    Raises:
        SpecError: the tool is not installed.
        ToolFailed: the tool's exit status was not 0.
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
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` allows this node to use."""
    result = []
    for line in run("nvidia-smi", *GPU_QUERY).splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            result.append(Gpu(int(cells[0]), cells[1], cells[2].removeprefix("NVIDIA "), cells[3], cells[4]))
    return visible(result, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[Gpu], chosen: str | None) -> list[Gpu]:
    """Apply ``CUDA_VISIBLE_DEVICES`` as CUDA does: in its order, up to the first device that does not exist."""
    if chosen is None:
        return list(gpus)
    left: list[Gpu] = []
    for name in (part.strip() for part in chosen.split(",")):
        named = [gpu for gpu in gpus if name == str(gpu.index) or (name[:4] == "GPU-" and gpu.uuid.startswith(name))]
        if len(named) != 1 or named[0] in left:
            break
        left += named
    return left


def profiles(table: str) -> list[Profile]:
    """Parse ``nvidia-smi mig -lgip``: rows like ``|   0  MIG 1g.10gb   19   7/7   9.75   No ...``."""
    rows = re.finditer(r"\|\s+\d+\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+(\d+(?:\.\d+)?)\s", table)
    return [Profile(row[1], int(row[2]), int(row[3]), int(row[4]), float(row[5])) for row in rows]


def instances(table: str) -> list[int]:
    """Parse ``nvidia-smi mig -lgi``: the ids of the GPU instances."""
    return [int(row[1]) for row in re.finditer(r"\|\s+\d+\s+MIG \S+\s+\d+\s+(\d+)\s+\d+:\d+\s+\|", table)]


def created(output: str) -> list[int]:
    """Parse the output of ``nvidia-smi mig -cgi ... -C``: the ids of the created instances."""
    return [int(row[1]) for row in re.finditer(r"created GPU instance ID\s+(\d+) on GPU", output)]


def slices(listing: str) -> dict[str, list[Slice]]:
    """Parse ``nvidia-smi -L``: each GPU's MIG devices, by the GPU's UUID."""
    slices_by_gpu: dict[str, list[Slice]] = {}
    of: list[Slice] = []
    for line in listing.splitlines():
        if gpu := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            of = slices_by_gpu.setdefault(gpu[1], [])
        elif device := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line):
            of.append(Slice(device[1], device[2]))
    return slices_by_gpu
