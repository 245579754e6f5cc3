"""Detection of this computer's GPUs, and their division among the nodes."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

import anyio

from ...lazy_dataclass import dataclass
from ..base import AcceleratorRequest
from ..errors import NoCapacity
from ..nvidia_smi import QUERY, Device, parse


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
