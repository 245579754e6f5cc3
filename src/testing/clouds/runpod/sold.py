"""The GPUs and processors that RunPod's test cloud offers, and the catalogue with their remaining stock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SoldGpu:
    """A GPU. ``vcpus`` and ``memory_gb`` are per GPU.

    ``secure`` and ``community`` are the prices of one GPU in RunPod's Secure Cloud and Community Cloud, in USD per
    hour. 0: this cloud does not sell the GPU.
    """

    id: str
    name: str
    memory: int
    secure: float
    community: float = 0.0
    at_most: int = 8
    vcpus: int = 16
    memory_gb: int = 125
    manufacturer: str = "NVIDIA"


@dataclass(frozen=True, slots=True)
class SoldCpu:
    """A CPU flavor. ``usd``: price per hour of one vCPU."""

    id: str
    usd: float
    memory_gb: float  # memory per vCPU
    at_most: int = 32


GPUS = (
    SoldGpu("NVIDIA GeForce RTX 4090", "RTX 4090", 24, 0.69, 0.34),
    SoldGpu("NVIDIA RTX A4000", "RTX A4000", 16, 0.25, 0.17),
    SoldGpu("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, 1.49),
    SoldGpu("NVIDIA H100 80GB HBM3", "H100 SXM", 80, 2.99),
    SoldGpu("AMD Instinct MI300X OAM", "MI300X", 192, 2.39, manufacturer="AMD"),
    SoldGpu("unknown", "unknown", 0, 0.0, manufacturer="UNKNOWN"),
)
CPUS = (SoldCpu("cpu3c", 0.03, 2.0), SoldCpu("cpu5c", 0.035, 2.0), SoldCpu("cpu3m", 0.055, 8.0))
# Data center -> whether it has a global network.
CENTERS: Mapping[str, bool] = {"EU-RO-1": True, "US-KS-2": True, "US-TX-3": False}
ROOM: Mapping[tuple[str, str], int] = {
    (each.id, center): 64 for each in (*GPUS[:-1], *CPUS) for center in ("EU-RO-1", "US-KS-2", "US-TX-3")
}
_LEVELS = ((0, "NONE"), (2, "LOW"), (8, "MEDIUM"))
Left = Callable[[str, str], int]  # (type, data center) -> how many more pods of the type fit there


def gpu(each: SoldGpu, query: Mapping[str, str], left: Left) -> dict[str, Any]:
    cloud, count = query.get("cloud", "SECURE"), int(query.get("count", "1"))
    community = each.community > 0
    entry = {
        "id": each.id,
        "name": each.name,
        "pool": None,
        "manufacturer": each.manufacturer,
        "memory": each.memory,
        "secure": each.secure > 0,
        "community": community,
        # Like RunPod, list a price even if the cloud does not sell this GPU.
        "price": {"secure": each.secure, "community": each.community or 0.5},
        "maxCount": {"secure": each.at_most, "community": each.at_most if community else 0},
    }
    sells = price(each, cloud) > 0 and count <= each.at_most
    return entry | (_availability(each.id, left) if sells else {"availability": "NONE"})


def price(each: SoldGpu, cloud: str) -> float:
    """Return the price of a GPU in USD per hour in RunPod's Secure Cloud (``cloud="SECURE"``) or Community Cloud.

    0: this cloud does not sell the GPU.
    """
    return each.secure if cloud == "SECURE" else each.community


def cpu(each: SoldCpu, left: Left) -> dict[str, Any]:
    entry = {
        "id": each.id,
        "name": "Compute-Optimized",
        "group": "Gen 3",
        "vcpu": {"min": 2, "max": each.at_most},
        "ramGbPerVcpu": each.memory_gb,
        "price": {"securePerVcpu": each.usd, "serverlessPerVcpu": each.usd},
    }
    return entry | _availability(each.id, left)


def center(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "region": "EUROPE" if name.startswith("EU") else "NORTH_AMERICA",
        "globalNetwork": CENTERS[name],
        "networkVolumeTypes": ["STANDARD"],
        "compliance": [],
    }


def _availability(type: str, left: Left) -> dict[str, Any]:  # noqa: A002 (clouds' own word)
    there = {name: left(type, name) for name in CENTERS}
    if not any(number > 0 for number in there.values()):
        return {"availability": "NONE"}  # like RunPod, leave out the list of data centers
    listed = [{"id": name, "name": name, "availability": _level(number)} for name, number in there.items()]
    return {"availability": _level(sum(there.values())), "dataCenters": listed}


def _level(left: int) -> str:
    return next((level for most, level in _LEVELS if left <= most), "HIGH")
