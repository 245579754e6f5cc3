"""The options of a pool: its nodes, their machines and workers.

Options are checked when an object is created, so every existing object is valid.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict, Unpack, get_args

from ...lazy_dataclass import dataclass
from ...providers.base import (
    AcceleratorRequest,
    Allocation,
    Architecture,
    Containing,
    Keyless,
    Lasting,
    LaunchRequest,
    Priced,
    Provider,
)
from .checks import amount, check_known, checks_options, count, in_parts, one_of, refuse, seconds, shown
from .plugin import Plugin, check_plugins
from .task_options import OnLossOption

if TYPE_CHECKING:
    from .accelerators import Accelerator
    from .image import Image
    from .volume import Volume

ConsoleOption = Literal["auto", "rich", "plain", "silent"]
RunOption = str | Literal[False] | None
WorkerKind = Literal["process", "thread"]
Selection = Literal["cheapest", "first"]
Interconnect = Literal["efa"]
Scale = Literal["load"]
LEAST_SAMPLE_S = 0.1  # shortest interval between two samples of a node, in seconds
MOST = 100_000  # most nodes of a pool, and most concurrent tasks of a node; an event loop would take minutes for more
IDLE_S = 600.0  # default idle time after which a node leaves, if the pool is scaled by load
NAME_LENGTH = 40  # most characters of a pool's name
UNIQUE_LENGTH = NAME_LENGTH + len("-123456")  # most characters of a name that `unique` returns


@checks_options
@dataclass(frozen=True, slots=True, init=False)
class Nodes:
    """The number of nodes of a pool, as a fixed size or by load.

    ``Nodes(4)``: four nodes. ``Nodes(8, min=2)``: ready with 2, growing to 8. With ``Nodes(min=0, max=8,
    scale="load")`` the number follows the work: the pool adds nodes for waiting tasks, and idle nodes leave; with
    ``min=0``, the last node leaves, too, if there is no work. In such a pool, a broadcast runs on the nodes that are
    ready, at least one; `Pool.resize` sets how many of them it waits for.

    Args:
        desired: The number of nodes that the pool grows to. Not with ``scale``.
        min: The pool is ready with this number. Default: ``desired``; with ``scale``, 0.
        max: The limit of `Pool.resize`; with ``scale`` also of the growth by load, and required. Default: no limit.
        spare: Additional nodes that are ready but get no work. A spare replaces a lost node, or a node that will be
            lost, at once. A spare costs as much as any other node.
        scale: ``"load"``: the number of nodes follows the work, from ``min`` to ``max``.
        idle: Seconds without work after which a node leaves. Only with ``scale``. Default: 600.

    Raises:
        SpecError: A number is invalid, or contradicts another one.
    """

    desired: int
    min: int
    max: int | None
    spare: int
    scale: Scale | None
    idle: float

    def __init__(
        self,
        desired: int | None = None,
        *,
        min: int | None = None,  # noqa: A002
        max: int | None = None,  # noqa: A002
        spare: int = 0,
        scale: Scale | None = None,
        idle: float = IDLE_S,
    ) -> None:
        """Check the arguments. The default of ``min`` is ``desired``, and that of ``max`` is no limit."""
        count("Nodes(spare=...)", spare, least=0, most=MOST)
        if scale is None:
            least = _of_one_size(desired, min, max, idle)
        else:
            one_of("Nodes(scale=...)", scale, get_args(Scale))
            least = _by_load(desired, min, max)
        start = least if desired is None else desired
        values = {"desired": start, "min": least, "max": max, "spare": spare, "scale": scale}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "idle", seconds("Nodes(idle=...)", idle))

    def check_size(self, nodes: object) -> None:
        """Refuse a number of nodes that `Pool.resize` cannot set.

        Raises:
            SpecError: The number is outside of ``min`` and ``max``.
        """
        most = MOST if self.max is None else self.max
        if type(nodes) is not int or not self.min <= nodes <= most:
            limits = (
                f"{self.min} nodes or more, up to {MOST:,}" if self.max is None else f"{self.min} to {self.max} nodes"
            )
            refuse(f"resize takes {limits} (Nodes(min=, max=) of this pool), not {shown(nodes)}.")

    @classmethod
    def of(cls, nodes: int | tuple[int, int] | Nodes) -> Nodes:
        """Return the `Nodes` for the value of a ``nodes=`` option.

        Args:
            nodes: ``4``; ``(2, 8)``: ready with 2 and growing to 8; or `Nodes`.
        """
        match nodes:
            case Nodes():
                return nodes
            case (least, most):
                _size("the least of nodes=(least, most)", least)
                _size("the most of nodes=(least, most)", most)
                if least > most:
                    refuse(f"nodes={nodes!r}: the most, {most}, is less than the least, {least}.")
                return cls(most, min=least, max=most)
            case _:
                _size("nodes", nodes)
                return cls(nodes)


def _of_one_size(desired: int | None, least: int | None, most: int | None, idle: float) -> int:
    """Check the sizes of a pool with a fixed number of nodes. Return the minimum."""
    if desired is None:
        refuse('Nodes takes how many: Nodes(4), or by load Nodes(min=0, max=8, scale="load").')
    if idle != IDLE_S:
        refuse('Nodes(idle=...) is for pools whose size follows their work: add scale="load".')
    least = desired if least is None else least
    for name, value in (("desired", desired), ("min", least), ("max", desired if most is None else most)):
        _size(f"Nodes({name}=...)", value)
    if most is not None and least > most:
        refuse(f"Nodes: max={most} is less than min={least}.")
    if desired < least:
        refuse(f"Nodes: desired={desired} is less than min={least}.")
    if most is not None and desired > most:
        refuse(f"Nodes: desired={desired} is more than max={most}.")
    return least


def _size(name: str, value: object) -> None:
    if type(value) is int and value == 0:
        refuse(f'{name} must be at least 1, not 0; down to none goes Nodes(min=0, max=8, scale="load").')
    count(name, value, most=MOST)


def _by_load(desired: int | None, least: int | None, most: int | None) -> int:
    """Check the sizes of a pool whose number of nodes follows its work. Return the minimum."""
    if desired is not None:
        refuse(
            f'Nodes({desired}, scale="load"): the work decides how many: write Nodes(min=..., max=..., scale="load").'
        )
    if most is None:
        refuse('Nodes(scale="load") needs max=..., the most that the work may make of them.')
    least = 0 if least is None else least
    count("Nodes(min=...)", least, least=0, most=MOST)
    count("Nodes(max=...)", most)
    if least > most:
        refuse(f"Nodes: max={most} is less than min={least}.")
    return least


@checks_options
@dataclass(frozen=True, slots=True)
class Worker:
    """The task slots of a node, and its room for large objects.

    Args:
        concurrency: The number of tasks that a node runs at a time.
        kind: ``"process"``: each task has a process of its own. ``"thread"``: all tasks of a node are threads of one
            process, for tasks that wait more than they compute. A task that ends this process also ends the node's
            other tasks, and plugins that set up a whole process are refused.
        object_memory_gb: The GB of a node's memory for large objects that no call uses at present, such as values
            received for earlier calls. Default: an eighth of the memory.
        object_disk_gb: The GB of a node's disk for the least recently used of these objects. Default: four times the
            memory for objects.
        node_to_node: False: each node gets large objects from this program, and not from other nodes.

    Raises:
        SpecError: An option is not valid.
    """

    concurrency: int = 1
    kind: WorkerKind = "process"
    object_memory_gb: float | None = None
    object_disk_gb: float | None = None
    node_to_node: bool = True

    def __post_init__(self) -> None:
        count("Worker(concurrency=...)", self.concurrency, most=MOST)
        one_of("Worker(kind=...)", self.kind, get_args(WorkerKind))
        for option in ("object_memory_gb", "object_disk_gb"):
            if getattr(self, option) not in (None, 0):
                amount(f"Worker({option}=...)", getattr(self, option), "GB")
        if not isinstance(self.node_to_node, bool):
            refuse(f"Worker(node_to_node=...) takes True or False, not {shown(self.node_to_node)}.")

    @property
    def object_bytes(self) -> tuple[int | None, int | None]:
        """The bytes for objects in memory and on disk; None: derived from the node's size."""
        memory, disk = self.object_memory_gb, self.object_disk_gb
        return None if memory is None else in_parts(memory, 1e9), None if disk is None else in_parts(disk, 1e9)


class MachineNeeds(TypedDict, total=False):
    """The options of each machine. The docstring of `Spec` describes them."""

    accelerator: str | Accelerator | None
    vcpus: int | None
    memory_gb: float | None
    disk_gb: int | None
    architecture: Architecture | None
    allocation: Allocation | None
    max_hourly_cost: float | None
    interconnect: Interconnect | None


class MachineOptions(MachineNeeds, total=False):
    """The options of `Spec`, whose docstring describes them."""

    provider: Provider | None


def shown_signature(declared: type, defaults: Mapping[str, object], *first: Parameter) -> Signature:
    """Return the signature that `help` and notebooks show for a class whose options are a typed dict.

    An option without a default is shown with None.
    """
    options = (
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind.__forward_arg__)
        for name, kind in declared.__annotations__.items()
        if name not in [each.name for each in first]
    )
    return Signature([*first, *options])


@dataclass(frozen=True, slots=True, init=False)
class Spec:
    """The kind of a pool's machines and their provider: ``Pool(Spec(AWS(...), vcpus=8), Spec(GCP(...)))``.

    Args:
        provider: Where machines come from. Default: `Local()`.
        accelerator: The devices of each machine: ``"A100"``, ``"A100:8"`` or ``accelerators.A100(count=8)``.
        vcpus: The least number of virtual processors of each machine. None: any.
        memory_gb: The least memory of each machine, in GB. None: any.
        disk_gb: The least disk of each machine, in GB. None: any.
        architecture: ``"x86_64"`` or ``"arm64"``. None: the one that costs less.
        allocation: ``"spot"``, ``"spot-if-available"``, ``"on-demand"`` or ``"cheapest"``. None:
            ``"spot-if-available"``.
        max_hourly_cost: The highest price of one machine in USD per hour; more expensive machines are not used. None:
            no limit.
        interconnect: ``"efa"`` places machines close together on a fast network, for ranks that communicate much.

    Raises:
        SpecError: An option can never work.
    """

    __signature__: ClassVar[Signature] = shown_signature(
        MachineOptions,
        {},
        Parameter("provider", Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="Provider | None"),
    )

    provider: Provider
    accelerator: AcceleratorRequest | None
    vcpus: int
    memory_gb: float
    disk_gb: int
    architecture: Architecture | None
    allocation: Allocation | None
    max_hourly_cost: float | None
    interconnect: Interconnect | None

    def __init__(self, provider: Provider | None = None, **options: Unpack[MachineNeeds]) -> None:
        check_known("Spec", options, MachineOptions.__annotations__)
        for name, value in _checked({"provider": provider, **options}).items():
            object.__setattr__(self, name, value)

    def applied_to(self, request: LaunchRequest) -> LaunchRequest:
        """Return the launch request with the machine options of this spec."""
        needs = {name: getattr(self, name) for name in MachineNeeds.__annotations__}
        return replace(request, **needs | {"allocation": self.allocation or "spot-if-available"})


def _checked(options: MachineOptions) -> Mapping[str, object]:
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


def chosen(arguments: Sequence[object], options: MachineOptions) -> tuple[Spec, ...]:
    for each in arguments:
        if not isinstance(each, Spec):
            meant = ""
            if isinstance(each, Provider):
                meant = f": write Pool(provider={type(each).__name__}(...))"
            elif isinstance(each, int) and not isinstance(each, bool):
                meant = f": write Pool(nodes={shown(each)})"
            refuse(f"Pool takes Spec(...) and options with names, not {shown(each)}{meant}.")
    several = tuple(each for each in arguments if isinstance(each, Spec))
    if not several:
        return (Spec(**options),)
    for name, value in options.items():
        if value is not None:
            refuse(f"{name} goes into each Spec(...) of this pool: write Spec({name}=...).")
    if len({each.provider.local for each in several}) > 1:
        refuse("Specs of this computer and of others cannot be one pool's: their nodes have different software.")
    return several


def outlives(provider: Provider) -> bool:
    return isinstance(provider, Lasting) and provider.outlives


def check_outlives(provider: object) -> None:
    """Refuse a provider whose machines end with their client, because no other client can attach to them."""
    _check_provider(provider)
    if isinstance(provider, Provider) and not outlives(provider):
        refuse(f"Machines of {provider.name} end with their client: there is nothing to attach to.")


def is_free(provider: Provider) -> bool:
    """Return whether the provider's machines cost nothing. A provider that does not implement `Priced` is not free."""
    return isinstance(provider, Priced) and provider.free


def check_containers(image: str | None, specs: Sequence[Spec]) -> None:
    """Refuse a container image if the machines are not containers."""
    for spec in specs if image is not None else ():
        if not (isinstance(spec.provider, Containing) and spec.provider.containers):
            refuse(
                f"Image(container={image!r}): machines of {spec.provider.name} are no containers: use "
                f"provider=Containers({image!r}, hosts=[...]), or leave container out."
            )


def keyless(provider: Provider) -> bool:
    return isinstance(provider, Keyless) and provider.keyless


def _check_provider(provider: object) -> None:
    if isinstance(provider, type):
        refuse(f"provider takes an instance: write provider={provider.__name__}().")
    if not isinstance(provider, Provider):
        from ...providers.registry import PROVIDERS

        known = PROVIDERS.get(provider.lower()) if isinstance(provider, str) else None
        meant = f": write provider={known.provider.partition(':')[2]}(...)" if known else ""
        refuse(f"provider takes a provider such as Local(), not {shown(provider)}{meant}.")


def _accelerator(wanted: str | Accelerator | None) -> AcceleratorRequest | None:
    if wanted is None:
        return None
    from .accelerators import Accelerator

    accelerator = Accelerator.of(wanted)
    return AcceleratorRequest(accelerator.type, accelerator.count, accelerator.memory_gb)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    name: str | None
    # attach to all machines that a dead client has left, or to as many as `nodes` says; None: do not attach
    attach: Literal["all", "nodes"] | None
    specs: tuple[Spec, ...]
    provider: Provider  # the provider of the specs, or a provider that chooses among several
    nodes: Nodes
    worker: Worker
    image: Image
    plugins: tuple[Plugin, ...]
    on_loss: OnLossOption
    checkpoints: str | None  # URL of the checkpoints
    boot_timeout_s: float
    start_timeout_s: float | None
    replace_timeout_s: float
    lease_s: float
    max_lifetime_s: float | None
    max_cost: float | None  # USD
    volumes: tuple[Volume, ...] = ()
    keep: str | None = None  # a folder in the nodes' work folders, fetched at the end
    run: RunOption = None  # name of the run's record (its folder); False: no record
    sample_every_s: float | None = None  # None: nodes send no samples
    max_idle_s: float | None = None
    trackers: tuple[object, ...] = ()  # objects of type `record.trackers.base.Tracker`, which receive the run's record
    flush_s: float = 5.0  # seconds that the pool's end waits for the trackers
    traces: bool = False  # whether calls are traced with OpenTelemetry


def placement(on: int | Literal["head"] | None, *, most: int) -> int | None:
    """Return the rank of the node that ``on=`` of `Pool.run` selects in a pool of ``most`` nodes; None: any node."""
    if on is None:
        return None
    if on == "head":
        return 0
    if not isinstance(on, int) or isinstance(on, bool) or on < 0:
        refuse(f'on takes "head" or the rank of a node, 0 or more, not {shown(on)}.')
    if on >= most:
        refuse(f"on={on} is the rank of no node of this pool: the last of {most} has rank {most - 1}.")
    return on


def work_files(option: str, pattern: object) -> str:
    """Check a name of files in a node's work folder, and return it: a file, a folder or a pattern."""
    if not isinstance(pattern, str) or not pattern.strip():
        refuse(f"{option} takes what is in a node's work folder, as in 'log/', not {shown(pattern)}.")
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        refuse(f"{option}: {pattern!r} is not in the work folder, which relative paths of tasks are in.")
    return pattern


def pool_name(name: object, *, most: int = NAME_LENGTH, option: str = "name") -> str:
    """Check the name of a pool, or of its run, and return it. It becomes a tag, a folder and a part of other names."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > most:
        characters = "letters, digits, '.', '_' and '-'"
        refuse(f'{option} takes up to {most} {characters}, not {shown(name)}: as in {option}="train-1".')
    return name


def run_option(run: object) -> RunOption:
    if run is None or run is False:
        return run
    if run is True:
        refuse(
            'run takes the name of the record, as in run="train-1", or False for none; left out, a script leaves one.'
        )
    return pool_name(run, option="run")


def sample_option(every: object) -> float | None:
    """Return the interval between samples of a node in seconds; None: no samples."""
    if every is None or (every == 0 and not isinstance(every, bool)):
        return None
    every_s = seconds("sample_every", every)
    if every_s < LEAST_SAMPLE_S:
        refuse(f"sample_every must be at least {LEAST_SAMPLE_S} seconds, not {every_s:g}; 0 turns samples off.")
    return every_s


def traces_option(traces: object) -> bool:
    """Return whether calls are traced with OpenTelemetry."""
    if not isinstance(traces, bool):
        refuse(f"traces takes True or False, not {shown(traces)}.")
    if traces and find_spec("opentelemetry") is None:
        refuse("traces=True needs a part that is not installed: pip install 'outrider[otel]'.")
    return traces


def flush_option(flush: object) -> float:
    """Return how many seconds the end of a pool waits for its trackers; 0: no wait."""
    if isinstance(flush, int | float) and not isinstance(flush, bool) and not 0 < flush < float("inf"):
        return 0.0 if flush == 0 else refuse(f"flush_timeout takes seconds, 0 or more, not {flush}.")
    return seconds("flush_timeout", flush)


def idle_option(idle: object, every_s: float | None) -> float | None:
    """Return how many seconds the pool may be idle; None: no limit.

    ``every_s``: the interval between samples of its nodes.
    """
    if idle is None:
        return None
    idle_s = seconds("max_idle", idle)
    if every_s is None:
        refuse("max_idle is decided by samples of the nodes: leave out sample_every, or set it to seconds.")
    if idle_s < 2 * every_s:
        refuse(f"max_idle={idle_s:g} is too short for a sample every {every_s:g} s (sample_every): take minutes.")
    return idle_s


def unique(name: str) -> str:
    """Return a unique name for one pool, by which all its resources are found and ended.

    Pools with the same ``name`` get different unique names.
    """
    return f"{name}-{os.urandom(3).hex()}"


def is_named(unique_name: str, name: str) -> bool:
    return unique_name == name or re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{6}}", unique_name) is not None


def check_scaled(plugins: Sequence[Plugin], keep: object) -> None:
    """Refuse options that are incompatible with scaling by load, where nodes leave when they have no work."""
    if keep is not None:
        refuse('keep fetches files at the end, when nodes of Nodes(scale="load") have left: use pool.fetch before.')
    for plugin in plugins:
        if type(plugin).attach is not Plugin.attach:
            refuse(f'Nodes(scale="load"): the pool does not see what {plugin.name} runs, and would end its nodes.')


def check_pool(plugins: object, on_loss: object, console: object, selection: object) -> None:
    if isinstance(plugins, Plugin) or not isinstance(plugins, Sequence) or isinstance(plugins, str):
        refuse(f"plugins takes a list, as in plugins=[plugins.torch()], not {shown(plugins)}.")
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            name = plugin if isinstance(plugin, str) and plugin.isidentifier() else getattr(plugin, "__name__", "")
            call = f": write plugins.{name}()" if name else ""
            refuse(f"plugins takes plugins, not {shown(plugin)}{call}.")
    check_plugins(plugins)
    one_of("on_loss", on_loss, get_args(OnLossOption))
    one_of("console", console, get_args(ConsoleOption))
    one_of("selection", selection, get_args(Selection))
