"""Define `Spec`, checked when it is written: the kind of machines that a pool uses, and the provider they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import ClassVar, Literal, TypedDict, Unpack, get_args

from ...providers.base import (
    AcceleratorRequest,
    Allocation,
    Architecture,
    Keyless,
    Lasting,
    LaunchRequest,
    Priced,
    Provider,
)
from .accelerators import Accelerator
from .errors import unknown_option
from .settings import amount, count, one_of, refuse, shown

Interconnect = Literal["efa"]


class MachineNeeds(TypedDict, total=False):
    """The minimum requirements on a machine; see `Spec`."""

    accelerator: str | Accelerator | None
    vcpus: int | None
    memory_gb: float | None
    disk_gb: int | None
    architecture: Architecture | None
    allocation: Allocation | None
    max_hourly_cost: float | None
    interconnect: Interconnect | None


class MachineOptions(MachineNeeds, total=False):
    """The options of `Spec`, which `Pool` has too."""

    provider: Provider | None


def check_known(owner: str, given: Iterable[str], declared: type) -> None:
    """Refuse options that ``declared``, a typed dict, does not have. ``owner``: the class or function that was called.

    Raises:
        SpecError
    """
    known = tuple(declared.__annotations__)
    for name in given:
        if name not in known:
            raise unknown_option(owner, name, known)


def shown_signature(declared: type, defaults: Mapping[str, object], *first: Parameter) -> Signature:
    """Return the signature that `help` and notebooks show for a class whose options are a typed dict. An option without
    a default is shown with None.
    """
    options = (
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind.__forward_arg__)
        for name, kind in declared.__annotations__.items()
    )
    return Signature([*first, *options])


@dataclass(frozen=True, slots=True, init=False)
class Spec:
    """The kind of a pool's machines and their provider: ``Pool(Spec(provider=AWS(...), vcpus=8), Spec(...))``.

    ``provider``: default `Local()`. Sizes (``vcpus``, ``memory_gb``, ``disk_gb``) are minimums, per machine.
    ``accelerator``: ``"A100"``, ``"A100:8"`` or ``accelerators.A100(count=8)``. ``architecture``: default the one that
    costs less. ``allocation``: default ``"spot-if-available"``. ``max_hourly_cost``: USD for one machine, above which
    it is not taken. ``interconnect="efa"``: placed together, on a network for ranks that talk much.

    Raises:
        SpecError: an option that cannot mean anything, such as a price for machines that cost nothing.
    """

    __signature__: ClassVar[Signature] = shown_signature(MachineOptions, {})

    provider: Provider
    accelerator: AcceleratorRequest | None
    vcpus: int
    memory_gb: float
    disk_gb: int
    architecture: Architecture | None
    allocation: Allocation | None
    max_hourly_cost: float | None
    interconnect: Interconnect | None

    def __init__(self, **options: Unpack[MachineOptions]) -> None:
        check_known("Spec", options, MachineOptions)
        for name, value in _checked(options).items():
            object.__setattr__(self, name, value)

    def applied_to(self, request: LaunchRequest) -> LaunchRequest:
        """Return ``request`` with the needs of this spec."""
        needs = {name: getattr(self, name) for name in MachineNeeds.__annotations__}
        return replace(request, **needs | {"allocation": self.allocation or "spot-if-available"})


def _checked(options: MachineOptions) -> Mapping[str, object]:
    """Return all fields of a `Spec`, checked.

    Raises:
        SpecError
    """
    provider = options.get("provider")
    if provider is None:
        from ...providers.local.provider import Local

        provider = Local()
    _check_provider(provider)
    choices = {"architecture": Architecture, "allocation": Allocation, "interconnect": Interconnect}
    chosen = {name: options.get(name) for name in choices}
    for name, value in chosen.items():
        if value is not None:
            one_of(name, value, get_args(choices[name]))
    cost, memory_gb = options.get("max_hourly_cost"), options.get("memory_gb")
    if is_free(provider) and (chosen["allocation"] is not None or cost is not None):
        what = "max_hourly_cost" if chosen["allocation"] is None else "allocation"
        refuse(f"{what} is for machines that cost something, and those of {provider.name} do not: leave it out.")
    sizes = {name: options.get(name) for name in ("vcpus", "disk_gb")}
    for name, size in sizes.items():
        if size is not None:
            count(name, size)
    return {
        **chosen,
        **{name: size or 0 for name, size in sizes.items()},
        "provider": provider,
        "accelerator": _accelerator(options.get("accelerator")),
        "memory_gb": 0.0 if memory_gb is None else amount("memory_gb", memory_gb, "GB"),
        "max_hourly_cost": None if cost is None else amount("max_hourly_cost", cost, "USD per hour"),
    }


def chosen(given: Sequence[object], options: MachineOptions) -> tuple[Spec, ...]:
    """Return the specs that `Pool` was given: several of them, or one made from its options.

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
    """Return the ``max_cost`` of a pool, in USD.

    Raises:
        SpecError: the provider's machines cost nothing, or it is not an amount.
    """
    if is_free(provider):
        refuse(f"max_cost is for machines that cost something, and those of {provider.name} do not: leave it out.")
    return amount("max_cost", value, "USD")


def outlives(provider: Provider) -> bool:
    """Return whether the provider's machines outlive their client, so that another client may take them over."""
    return isinstance(provider, Lasting) and provider.outlives


def check_outlives(provider: object) -> None:
    """Refuse a provider whose machines end with their client: nobody can attach to them.

    Raises:
        SpecError
    """
    _check_provider(provider)
    if isinstance(provider, Provider) and not outlives(provider):
        refuse(f"Machines of {provider.name} end with their client: there is nothing to attach to.")


def is_free(provider: Provider) -> bool:
    """Return whether the provider's machines cost nothing that could be counted. A provider that does not say has
    prices.
    """
    return isinstance(provider, Priced) and provider.free


def keyless(provider: Provider) -> bool:
    """Return whether the provider's machines are reached without SSH."""
    return isinstance(provider, Keyless) and provider.keyless


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
