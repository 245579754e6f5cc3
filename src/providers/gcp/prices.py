"""Prices on Compute Engine: of a family's vCPUs and memory and of each GPU, which add up to a machine's.

The table (``prices.json``) has USD per vCPU and GB in us-central1, each region's factor, GPUs by region, and spot
prices as a share of those on demand (of GPUs in USD). See decision 68.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...lazy_dataclass import dataclass
from ..cloud.price_table import bundled_table, cheapest_first

# Compute Engine's names of GPUs: Outrider's name, GB of memory ("GPU machine types", Compute Engine's documentation)
GPUS: Final[Mapping[str, tuple[str, float]]] = {
    "nvidia-l4": ("L4", 24), "nvidia-tesla-t4": ("T4", 16), "nvidia-tesla-p4": ("P4", 8),
    "nvidia-tesla-v100": ("V100", 16), "nvidia-tesla-p100": ("P100", 16), "nvidia-tesla-a100": ("A100", 40),
    "nvidia-a100-80gb": ("A100", 80), "nvidia-h100-80gb": ("H100", 80), "nvidia-h100-mega-80gb": ("H100", 80),
    "nvidia-h200-141gb": ("H200", 141), "nvidia-b200": ("B200", 180), "nvidia-gb200": ("GB200", 186),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", 96),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PricedParts:
    """The priced parts of a machine. ``gpu``: Compute Engine's name of it. ``ssds``: local disks that come with it."""

    family: str
    vcpus: int
    memory_gb: float
    gpu: str = ""
    gpus: int = 0
    ssds: int = 0


def hourly_usd(parts: PricedParts, region: str, *, spot: bool) -> float | None:
    """USD per hour of a machine, without boot disk and address; None: one of its prices is not known."""
    table = bundled_table(__file__)
    family = table["families"].get(parts.family)
    if family is None:
        return None
    factor = family.get("regions", table["regions"]).get(region)
    share = family.get("spot", {}).get(region) if spot else 1.0
    gpu = table["gpus"].get(parts.gpu, {}).get(region, (None, None))[spot] if parts.gpu else 0.0
    if factor is None or share is None or gpu is None:
        return None
    rest = parts.vcpus * family["core"] + parts.memory_gb * family["ram"]
    return float(rest * factor * share + parts.gpus * gpu + parts.ssds * table["local_ssd"])


def regions_with(accelerator: str) -> list[str]:
    """Regions that have an accelerator (Outrider's name) according to the table, the lowest prices first."""
    having = [regions for name, regions in bundled_table(__file__)["gpus"].items() if GPUS[name][0] == accelerator]
    return cheapest_first((region, usd) for regions in having for region, (usd, _) in regions.items())
