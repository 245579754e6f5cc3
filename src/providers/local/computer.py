"""A check of this computer against a pool's request. Every local node sees the whole computer."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..base import LaunchRequest, MachineOffer
from ..errors import BadRequest

GB = 1e9
ARCHITECTURES = {"aarch64": "arm64", "amd64": "x86_64"}


async def this_computer(request: LaunchRequest, directory: Path) -> MachineOffer:
    """Return the offer for one local node: all of this computer, with the node's share of the GPUs.

    Raises:
        BadRequest, NoCapacity: The computer has less than requested.
    """
    from .devices import divide, find_devices

    refuse_too_much(request, next(each for each in (directory, *directory.parents) if each.exists()))
    share = divide(await find_devices(), request.nodes, request.accelerator)[0]
    return MachineOffer(
        kind="this computer",
        hourly_usd=0.0,
        vcpus=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB, 1),
        architecture=ARCHITECTURES.get(platform.machine().lower(), platform.machine()),
        accelerator=", ".join(dict.fromkeys(device.name for device in share.devices)),
        accelerators=len(share.devices),
    )


def refuse_too_much(request: LaunchRequest, directory: Path) -> None:
    """Raise an error if a request needs more than this computer has.

    Raises:
        BadRequest: The computer has less, or has another architecture.
    """
    cpus = len(os.sched_getaffinity(0))
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB
    architecture = ARCHITECTURES.get(platform.machine().lower(), platform.machine())
    if request.vcpus > cpus:
        raise BadRequest(f"vcpus={request.vcpus}, and this computer has {cpus}")
    if request.memory_gb > memory_gb:
        raise BadRequest(f"memory_gb={request.memory_gb:g}, and this computer has {memory_gb:.1f}")
    if request.disk_gb and request.disk_gb > (free_gb := _free_gb(directory)):
        raise BadRequest(f"disk_gb={request.disk_gb}, and {directory} has room for {free_gb:.0f}")
    if request.architecture not in (None, architecture):
        raise BadRequest(f"architecture={request.architecture!r}, and this computer is {architecture}")
    if request.interconnect is not None:
        raise BadRequest(f"interconnect={request.interconnect!r}, and this computer has none: leave it out")


def _free_gb(directory: Path) -> float:
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize / GB
