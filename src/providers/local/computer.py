"""The resources of this computer: its GPUs, their division among the nodes, and a check of a pool's request.

Every local node sees the whole computer, except for the GPUs of other nodes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

import anyio

from ...lazy_dataclass import dataclass
from ..base import AcceleratorRequest, LaunchRequest, MachineOffer
from ..errors import BadRequest, NoCapacity
from ..shared.nvidia_smi import QUERY, Device, parse

GB = 1e9
ARCHITECTURES = {"aarch64": "arm64", "amd64": "x86_64"}


async def this_computer(request: LaunchRequest, directory: Path) -> MachineOffer:
    """Return the offer for one local node: all of this computer, with the node's share of the GPUs.

    Raises:
        BadRequest, NoCapacity: The computer has less than requested.
    """

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


# --- GPUs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """The devices that one node sees."""

    devices: tuple[Device, ...]
    hide_others: bool

    @property
    def environment(self) -> dict[str, str]:
        if not self.hide_others:
            return {}
        # nvidia-smi numbers the devices by PCI bus, so CUDA has to do so, too: by default, CUDA starts with the fastest
        # device.
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(str(device.index) for device in self.devices),
        }

    @property
    def accelerators(self) -> list[tuple[str, float]]:
        return [(device.name, device.memory_gb) for device in self.devices]


async def find_devices() -> list[Device]:
    """Return the GPUs that CUDA would show this process. nvidia-smi takes a second, so it runs only if the driver is
    loaded.
    """
    if not _driver_is_loaded():
        return []
    from shutil import which  # imported here: the import is slow, and computers without GPUs do not need it

    if not (tool := which("nvidia-smi")):
        return []
    with anyio.move_on_after(20):
        done = await anyio.run_process([tool, *QUERY], check=False, stderr=subprocess.DEVNULL)
        if done.returncode == 0:
            return visible(parse(done.stdout.decode()), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return []


def _driver_is_loaded() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def visible(devices: Sequence[Device], chosen: str | None) -> list[Device]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` allows. As in CUDA, the list ends before the first unknown
    device.
    """
    if chosen is None:
        return list(devices)
    left: list[Device] = []
    for name in (part.strip() for part in chosen.split(",")):
        named = [device for device in devices if _is_called(device, name)]
        if len(named) != 1 or named[0] in left:
            break
        left += named
    return left


def _is_called(device: Device, name: str) -> bool:
    return name == str(device.index) or (name.startswith("GPU-") and device.uuid.startswith(name))


def warn_of_too_few(devices: Sequence[Device], nodes: int, wanted: AcceleratorRequest | None) -> None:
    """Warn if the request names no GPUs and the computer has fewer GPUs than nodes: tasks then see no GPU, without an
    error.
    """
    if wanted is None and 0 < len(devices) < nodes:
        warnings.warn(
            f"none of {nodes} local nodes (spares included) sees a GPU, because this computer has only {len(devices)}: "
            "take fewer nodes (or nodes=1, with several ranks), or name the accelerator= to make it an error",
            RuntimeWarning,
            stacklevel=2,
        )


def divide(devices: Sequence[Device], nodes: int, wanted: AcceleratorRequest | None) -> list[Share]:
    """Divide the devices among the nodes. Return one share for each of ``nodes`` nodes.

    Raises:
        NoCapacity: The request needs more devices than there are.
    """
    if wanted is None:
        each = len(devices) // nodes
        return [Share(tuple(devices[n * each : (n + 1) * each]), hide_others=bool(devices)) for n in range(nodes)]
    each = wanted.count
    fitting = [device for device in devices if wanted.fits(device.name, device.memory_gb)]
    if len(fitting) < each * nodes:
        has = ", ".join(f"{d.name} ({d.memory_gb:g} GB)" for d in devices) or "no accelerator"
        many = (
            f"{nodes} local nodes with {wanted} each need {each * nodes}"
            if nodes > 1
            else f"a local node needs {wanted}"
        )
        raise NoCapacity(
            f"{many}; this computer has {has}", advice="Ask for less, or for machines of another provider."
        )
    return [Share(tuple(fitting[n * each : (n + 1) * each]), hide_others=True) for n in range(nodes)]
