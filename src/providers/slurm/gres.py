"""Translate a machine's required devices, processors and memory into sbatch arguments. No I/O."""

from __future__ import annotations

import math
import re

from ..base import AcceleratorRequest, LaunchRequest
from ..errors import BadRequest

MB_IN_GB = 1000
_WORD = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
UNSUPPORTED = {
    "architecture": "name the partition, or the feature that such nodes have, with Slurm(constraint=...)",
    "interconnect": "name the partition, or the feature that such nodes have, with Slurm(constraint=...)",
}


def gres_of(accelerator: AcceleratorRequest) -> str:
    """Return the gres text, as in "gpu:a100:4". Sites choose the type names; Slurm ignores their case.

    Raises:
        BadRequest: The accelerator's name cannot be a type name.
    """
    if not _WORD.fullmatch(accelerator.name):
        raise BadRequest(
            f"{accelerator.name!r} is no name of a type of devices in Slurm",
            advice="Say it as the site does: Slurm(gres='gpu:TYPE:COUNT'); `sinfo -o %G` lists the types.",
        )
    return f"gpu:{accelerator.name.lower()}:{accelerator.count}"


def arguments(request: LaunchRequest, gres: str | None) -> list[str]:
    """Return sbatch's arguments for the requirements of each node. ``gres``, if given, replaces the accelerator of the
    request.

    Raises:
        BadRequest: sbatch cannot express a part of the request.
    """
    for option, instead in UNSUPPORTED.items():
        if getattr(request, option):
            raise BadRequest(f"Slurm cannot be asked for {option}: {instead}")
    devices = gres if gres is not None or request.accelerator is None else gres_of(request.accelerator)
    options = [f"--gres={devices}"] if devices else []
    if request.vcpus:
        options.append(f"--cpus-per-task={request.vcpus}")
    if request.memory_gb:
        options.append(f"--mem={math.ceil(request.memory_gb * MB_IN_GB)}M")
    if request.disk_gb:
        options.append(f"--tmp={request.disk_gb}G")
    return options
