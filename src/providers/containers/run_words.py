"""The words behind ``docker run`` or ``podman run`` that start one container. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..long_options import as_words
from .cloud import DEVICES

if TYPE_CHECKING:
    from ..base import LaunchRequest
    from .provider import Containers

FIRST_LEASE_S = 30.0  # is added to the first lease
SHM_GB = 8  # where no memory is asked for; a limit, which costs nothing. The runtimes' own is 64 MB


def run_words(
    provider: Containers,
    request: LaunchRequest,
    *,
    name: str,
    labels: Mapping[str, str],
    devices: Sequence[int] = (),
    podman: bool = False,
) -> list[str]:
    """Return the words. ``devices``: numbers of GPUs, which Podman and Docker are told of in different ways."""
    words = ["--detach", "--rm", f"--name={name}"]
    words += [f"--label={key}={value}" for key, value in labels.items() if key != "Name"]
    if devices:
        words.append(f"--label={DEVICES}={','.join(map(str, devices))}")
    if provider.network is not True:
        words.append(f"--network={provider.network or 'none'}")
    if request.memory_gb:
        words.append(f"--memory={math.ceil(request.memory_gb * 1024)}m")
    if request.vcpus:
        words.append(f"--cpus={request.vcpus}")
    if not {"ipc", "shm-size"} & {option for option, _ in provider.run_options}:
        words.append(f"--shm-size={math.ceil(request.memory_gb / 2) or SHM_GB}g")
    if podman:
        words += [f"--device=nvidia.com/gpu={each}" for each in devices]
    elif devices:
        words.append(f'--gpus="device={",".join(map(str, devices))}"')
    words += [f"--volume={each}" for each in provider.volumes] + as_words(provider.run_options)
    lease_s = (request.lease_s, FIRST_LEASE_S, request.max_lifetime_s or 0.0)
    process = [first_process(), "outrider", lease_file(name), *(str(math.ceil(each)) for each in lease_s)]
    return [*words, "--entrypoint=/bin/sh", image_of(provider, request), "-c", *process]


def image_of(provider: Containers, request: LaunchRequest) -> str:
    return request.container or provider.image or ""


def lease_file(name: str) -> str:
    return f"/tmp/{name}.lease"  # noqa: S108 (in the container, whose own name it has)


@cache
def first_process() -> str:
    return Path(__file__).with_name("first_process.sh").read_text()
