"""What a pool's machines are like, and whose: `Spec`, checked when it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypedDict, get_args

from ..providers.base import AcceleratorRequest, Allocation, Architecture, LaunchRequest, Provider
from .accelerators import Accelerator
from .errors import unknown_option
from .spec import amount, count, one_of, refuse, shown

Interconnect = Literal["efa"]


@dataclass(frozen=True, slots=True, init=False)
class Spec:
    """What a pool's machines are like, and whose: ``Pool(Spec(provider=AWS(...), vcpus=8), Spec(...))``.

    Sizes are minimums, per machine. ``accelerator``: ``"A100"``, ``"A100:8"`` or ``accelerators.A100(count=8)``.
    ``architecture``: default the one that costs less. ``allocation``: default ``"spot-if-available"``.
    ``max_hourly_cost``: USD for one machine, above which it is not taken. ``interconnect="efa"``: placed together, on
    a network for ranks that talk much.

    Raises:
        SpecError: what cannot mean anything, such as a price for machines that cost nothing.
    """

    provider: Provider
    accelerator: AcceleratorRequest | None
    vcpus: int
    memory_gb: float
    disk_gb: int
    architecture: Architecture | None
    allocation: Allocation | None
    max_hourly_cost: float | None
    interconnect: Interconnect | None

    def __init__(
        self,
        *,
        provider: Provider | None = None,
        accelerator: str | Accelerator | None = None,
        vcpus: int | None = None,
        memory_gb: float | None = None,
        disk_gb: int | None = None,
        architecture: Architecture | None = None,
        allocation: Allocation | None = None,
        max_hourly_cost: float | None = None,
        interconnect: Interconnect | None = None,
        **unknown: object,
    ) -> None:
        for name in unknown:
            raise unknown_option("Spec", name, MACHINE_OPTIONS)
        if provider is None:
            from ..providers.local.provider import Local

            provider = Local()
        _check_provider(provider)
        for name, value, choices in (
            ("architecture", architecture, get_args(Architecture)),
            ("allocation", allocation, get_args(Allocation)),
            ("interconnect", interconnect, get_args(Interconnect)),
        ):
            if value is not None:
                one_of(name, value, choices)
        if is_free(provider) and (allocation is not None or max_hourly_cost is not None):
            what = "max_hourly_cost" if allocation is None else "allocation"
            refuse(f"{what} is for machines that cost something, and those of {provider.name} do not: leave it out.")
        cost = None if max_hourly_cost is None else amount("max_hourly_cost", max_hourly_cost, "USD per hour")
        if vcpus is not None:
            count("vcpus", vcpus)
        if disk_gb is not None:
            count("disk_gb", disk_gb)
        object.__setattr__(self, "provider", provider)
        object.__setattr__(self, "accelerator", _accelerator(accelerator))
        object.__setattr__(self, "vcpus", vcpus or 0)
        object.__setattr__(self, "memory_gb", 0.0 if memory_gb is None else amount("memory_gb", memory_gb, "GB"))
        object.__setattr__(self, "disk_gb", disk_gb or 0)
        object.__setattr__(self, "architecture", architecture)
        object.__setattr__(self, "allocation", allocation)
        object.__setattr__(self, "max_hourly_cost", cost)
        object.__setattr__(self, "interconnect", interconnect)

    def asked(self, request: LaunchRequest) -> LaunchRequest:
        """``request`` for such machines."""
        return replace(
            request,
            accelerator=self.accelerator,
            vcpus=self.vcpus,
            memory_gb=self.memory_gb,
            disk_gb=self.disk_gb,
            architecture=self.architecture,
            allocation=self.allocation or "spot-if-available",
            max_hourly_cost=self.max_hourly_cost,
            interconnect=self.interconnect,
        )


MACHINE_OPTIONS = tuple(each.name for each in fields(Spec))


class MachineOptions(TypedDict, total=False):
    """The options of `Spec`, which `Pool` has too."""

    provider: Provider | None
    accelerator: str | Accelerator | None
    vcpus: int | None
    memory_gb: float | None
    disk_gb: int | None
    architecture: Architecture | None
    allocation: Allocation | None
    max_hourly_cost: float | None
    interconnect: Interconnect | None


def chosen(given: Sequence[object], options: MachineOptions) -> tuple[Spec, ...]:
    """What `Pool` is given of machines: several specs, or the options of one.

    Raises:
        SpecError: both, or specs whose machines could never be one pool.
    """
    for each in given:
        if not isinstance(each, Spec):
            refuse(f"Pool takes Spec(...) and options with names, not {shown(each)}.")
    several = tuple(each for each in given if isinstance(each, Spec))
    if not several:
        return (Spec(**options),)
    for name, value in options.items():
        if value is not None:
            refuse(f"{name} goes into each Spec(...) of this pool: write Spec({name}=...).")
    if len({each.provider.local for each in several}) > 1:
        refuse("Specs of this computer and of others cannot be one pool's: their nodes have different software.")
    return several


def max_cost(value: object, provider: Provider) -> float:
    """
    Raises:
        SpecError
    """
    if is_free(provider):
        refuse(f"max_cost is for machines that cost something, and those of {provider.name} do not: leave it out.")
    return amount("max_cost", value, "USD")


def outlives(provider: Provider) -> bool:
    """Its machines outlive their client, so that another one may take them over."""
    return bool(getattr(provider, "outlives", False))


def check_outlives(provider: object) -> None:
    """
    Raises:
        SpecError: there is nothing to attach to.
    """
    _check_provider(provider)
    if isinstance(provider, Provider) and not outlives(provider):
        refuse(f"Machines of {provider.name} end with their client: there is nothing to attach to.")


def is_free(provider: Provider) -> bool:
    """Its machines cost nothing that one could count; a provider that says nothing has prices."""
    return bool(getattr(provider, "free", False))


def _check_provider(provider: object) -> None:
    if isinstance(provider, type):
        refuse(f"provider takes an instance: write provider={provider.__name__}().")
    if not isinstance(provider, Provider):
        refuse(f"provider takes a provider such as Local(), not {shown(provider)}.")


def _accelerator(wanted: str | Accelerator | None) -> AcceleratorRequest | None:
    if wanted is None:
        return None
    found = Accelerator.of(wanted)
    return AcceleratorRequest(found.type, found.count, found.memory_gb)
