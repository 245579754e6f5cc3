"""The MIG plugin: divide a node's GPUs into instances; each task or rank sees one instance."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api import checks
from ..api.errors import SpecError
from ..api.plugin import Plugin, Setup
from . import nvidia
from .nvidia import Gpu, ToolFailed

if TYPE_CHECKING:
    from ..api.instance import InstanceInfo
    from ..api.plugin import NodeSide

DEVICES = "OUTRIDER_MIG_DEVICES"  # variable in the node's tasks, with the UUIDs of the instances
BUSY_S = 10.0  # time to retry: a process that was just killed holds its instance a moment longer
RETRY_S = 0.5


def mig(profile: str, *, count: int | None = None) -> Mig:
    """Divide every GPU of a node into MIG instances. Needs root on the nodes.

    A task sees the instance of its slot; a rank sees the instance of its local rank. For `instance_info` and other
    plugins, the instances are the node's accelerators. When the pool ends, the GPUs are restored.

    Args:
        profile: The profile of the instances, such as "1g.10gb" (see ``nvidia-smi mig -lgip``).
        count: The number of instances per GPU. Default: as many as fit.

    Raises:
        SpecError: An option is not valid.
    """
    if not isinstance(profile, str) or not re.fullmatch(r"(?:MIG )?\d+g\.\d+gb(?:\+\S+)?", profile):
        raise SpecError(f"plugins.mig: a profile is called like '1g.10gb' or '3g.40gb', not {profile!r}.")
    if count is not None:
        checks.count("plugins.mig: count", count)
    return Mig(profile.removeprefix("MIG "), count)


@dataclass(frozen=True)
class Mig(Plugin):
    """The plugin that `mig` makes."""

    profile: str
    count: int | None = None

    name: ClassVar[str] = "mig"
    shares_devices: ClassVar[bool] = True
    fresh_ranks: ClassVar[bool] = True  # a process can use only one instance, and a rank may run in any slot

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        devices = [each for each in os.environ.get(DEVICES, "").split(",") if each]
        if not devices:
            return {}
        place = info.local_rank if info.generation else info.worker
        return {"CUDA_VISIBLE_DEVICES": devices[place % len(devices)]}

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:  # noqa: ARG002
        """Divide the node's GPUs while the pool is open.

        Raises:
            SpecError: a GPU does not support MIG or this profile, or is divided differently already.
        """
        gpus = nvidia.gpus()
        if not gpus:
            raise SpecError("plugins.mig: this node has no GPU.")
        with ExitStack() as stack:
            slices: list[str] = []
            accelerators: list[tuple[str, float]] = []
            for gpu in gpus:
                uuids, memory_gb = stack.enter_context(divided(gpu, self.profile, self.count))
                slices += uuids
                accelerators += [(f"{gpu.name} MIG {self.profile}", memory_gb)] * len(uuids)
            yield Setup(env={DEVICES: ",".join(slices)}, accelerators=tuple(accelerators))


@contextmanager
def divided(gpu: Gpu, profile: str, count: int | None) -> Iterator[tuple[list[str], float]]:
    """Divide a GPU during the block: (UUIDs of its instances, memory of each in GB).

    Instances that exist already are kept, and used if they have the wanted profile and number.

    Raises:
        SpecError: the GPU does not support MIG or this profile, has no room, or is divided differently already.
    """
    if gpu.mig not in {"Enabled", "Disabled"}:
        raise SpecError(f"GPU {gpu.index}, {gpu.name}, has no MIG: A30, A100, H100, H200 and their like do.")
    at = str(gpu.index)
    with ExitStack() as restore:
        if gpu.mig == "Disabled":
            restore.callback(_retry, lambda: nvidia.run("nvidia-smi", "-i", at, "-mig", "0"))
            _enable(gpu)
        offer = {each.name: each for each in nvidia.profiles(_tool_output("nvidia-smi", "mig", "-i", at, "-lgip"))}
        if profile not in offer:
            has = ", ".join(offer) or "none"
            raise SpecError(f"GPU {gpu.index}, {gpu.name}, has no MIG profile {profile}; it has {has}.")
        memory_gb = offer[profile].memory_gb
        if nvidia.instances(_listed(at)):
            there = _devices(gpu)
            if {each.profile for each in there} != {profile} or (count or len(there)) > len(there):
                has = ", ".join(each.profile for each in there) or "instances without compute instances"
                raise SpecError(
                    f"GPU {gpu.index} is divided already, into {has}: that is somebody's, and stays. Ask for the same, "
                    f"or have it removed by `nvidia-smi mig -i {at} -dci` and `-dgi`."
                )
            yield [each.uuid for each in there][:count], memory_gb
            return
        wanted = count or offer[profile].free
        if not 0 < wanted <= offer[profile].free:
            raise SpecError(
                f"GPU {gpu.index}, {gpu.name}, has room for {offer[profile].free} instances of {profile}, not for "
                f"{wanted}."
            )
        ids = ",".join([str(offer[profile].id)] * wanted)
        output = _tool_output("nvidia-smi", "mig", "-i", at, "-cgi", ids, "-C")
        instances = ",".join(map(str, nvidia.created(output)))
        restore.callback(_retry, lambda: nvidia.run("nvidia-smi", "mig", "-i", at, "-dgi", "-gi", instances))
        restore.callback(_retry, lambda: nvidia.run("nvidia-smi", "mig", "-i", at, "-dci", "-gi", instances))
        yield [each.uuid for each in _devices(gpu)], memory_gb


def _enable(gpu: Gpu) -> None:
    """Enable MIG on a GPU.

    Raises:
        SpecError: a process uses the GPU at present.
    """
    output = _tool_output("nvidia-smi", "-i", str(gpu.index), "-mig", "1")
    now = next((each for each in nvidia.gpus() if each.uuid == gpu.uuid), None)
    if now is None or now.mig != "Enabled":
        raise SpecError(
            f"MIG cannot be enabled on GPU {gpu.index} while something uses it, a monitoring service perhaps: stop "
            f"that, or enable MIG beforehand. nvidia-smi said: {output.strip()}"
        )


def _devices(gpu: Gpu) -> list[nvidia.Slice]:
    return nvidia.slices(_tool_output("nvidia-smi", "-L")).get(gpu.uuid, [])


def _listed(at: str) -> str:
    """Return the table of instances; empty where the tool fails because there are no instances."""
    try:
        return nvidia.run("nvidia-smi", "mig", "-i", at, "-lgi")
    except ToolFailed:
        return ""


def _tool_output(name: str, *arguments: str) -> str:
    """Run a tool; return its output.

    Raises:
        SpecError: the tool failed; the message has its output.
    """
    try:
        return nvidia.run(name, *arguments)
    except ToolFailed as failed:
        hint = " MIG is root's to change." if "ermission" in str(failed) else ""
        raise SpecError(f"The GPU could not be divided: {failed}.{hint}") from failed


def _retry(step: Callable[[], object]) -> None:
    """Run ``step``, which undoes a change, and retry while a killed process still holds its instance.

    A failure is printed, not raised.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            step()
        except ToolFailed as failed:
            if time.monotonic() > deadline or "n use" not in str(failed):
                print(f"outrider: a GPU is not as it was before: {failed}", file=sys.stderr)
                return
            time.sleep(RETRY_S)
        else:
            return
