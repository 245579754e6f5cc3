"""The regions, zones and machine types of the test cloud: only a few, in the format of Compute Engine's responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REGIONS: Mapping[str, Sequence[str]] = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
}
GPUS: Mapping[str, Sequence[str]] = {  # zone -> the GPUs that can be attached there, or that a type there includes
    "us-central1-a": ("nvidia-tesla-t4", "nvidia-tesla-v100", "nvidia-l4", "nvidia-tesla-a100"),
    "us-central1-b": ("nvidia-tesla-t4", "nvidia-l4"),
    "us-central1-c": ("nvidia-tesla-t4", "nvidia-l4", "nvidia-tesla-a100"),
    "us-central1-f": ("nvidia-tesla-t4", "nvidia-tesla-a100"),
    "europe-west4-a": ("nvidia-tesla-t4", "nvidia-l4"),
}
_STANDARD = {"e2": (2, 4, 8, 16), "n1": (1, 2, 4, 8, 16), "n2": (2, 4, 8, 16, 32), "n2d": (2, 4, 8, 16)}


def types_in(zone: str) -> list[dict[str, Any]]:
    """Return the machine types of a zone, in the format of machineTypes.list."""
    types = [
        _type(zone, f"{family}-standard-{vcpus}", vcpus, vcpus * (3840 if family == "n1" else 4096))
        for family, sizes in _STANDARD.items()
        for vcpus in sizes
    ]
    types.append(_type(zone, "e2-medium", 2, 4096) | {"isSharedCpu": True})
    gpus = GPUS.get(zone, ())
    if "nvidia-l4" in gpus:
        types += [_type(zone, f"g2-standard-{n}", n, n * 4096, "nvidia-l4", 1) for n in (4, 8)]
        types.append(_type(zone, "g2-standard-24", 24, 24 * 4096, "nvidia-l4", 2))
    if "nvidia-tesla-a100" in gpus:
        sizes = ((1, 12), (2, 24), (4, 48), (8, 96))
        types += [_type(zone, f"a2-highgpu-{n}g", vcpus, n * 87040, "nvidia-tesla-a100", n) for n, vcpus in sizes]
    return types


def _type(  # noqa: PLR0917
    zone: str, name: str, vcpus: int, memory_mb: int, gpu: str = "", gpus: int = 0
) -> dict[str, Any]:
    machine_type: dict[str, Any] = {
        "kind": "compute#machineType",
        "name": name,
        "guestCpus": vcpus,
        "memoryMb": memory_mb,
        "architecture": "X86_64",
        "isSharedCpu": False,
        "zone": zone,
    }
    if gpu:
        machine_type["accelerators"] = [{"guestAcceleratorType": gpu, "guestAcceleratorCount": gpus}]
    return machine_type
