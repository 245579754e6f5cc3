"""The options of `Pool`. The type, the default and the check of each option are defined only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from .api.checks import amount, refuse, seconds, shown
from .api.errors import SpecError
from .api.image import Image
from .api.settings import (
    ConsoleOption,
    MachineNeeds,
    MachineOptions,
    Nodes,
    RunOption,
    Selection,
    Settings,
    Worker,
    check_containers,
    check_pool,
    check_scaled,
    chosen,
    flush_option,
    idle_option,
    pool_name,
    run_option,
    sample_option,
    traces_option,
    work_files,
)
from .api.task_options import OnLossOption

if TYPE_CHECKING:
    from datetime import timedelta

    from ..providers.base import Provider
    from .api.chaos import ChaosPlan
    from .api.plugin import Plugin
    from .api.volume import Volume
    from .record.trackers.base import Tracker


class AttachOptions(MachineNeeds, total=False):
    """The options of `Pool.attach`. The docstring of `Pool` describes them."""

    selection: Selection
    nodes: int | tuple[int, int] | Nodes
    worker: Worker | int
    image: Image
    plugins: Sequence[Plugin]
    on_loss: OnLossOption
    checkpoints: str | PathLike[str] | None
    volumes: Sequence[Volume]
    keep: str | None
    boot_timeout: float
    start_timeout: float | timedelta | None
    replace_timeout: float
    lease: float
    max_lifetime: float | timedelta | None
    max_cost: float | None
    max_idle: float | timedelta | None
    sample_every: float | timedelta | None
    console: ConsoleOption
    run: RunOption
    trackers: Sequence[Tracker]
    flush_timeout: float | timedelta
    traces: bool
    chaos: ChaosPlan | None


class PoolOptions(MachineOptions, AttachOptions, total=False):
    """The options of `Pool`, whose docstring describes them."""

    name: str | None


NO_IMAGE = Image()
DEFAULTS: PoolOptions = {
    "selection": "cheapest",
    "name": None,
    "nodes": 1,
    "worker": Worker(),
    "image": NO_IMAGE,
    "plugins": (),
    "on_loss": "auto",
    "checkpoints": None,
    "volumes": (),
    "keep": None,
    "boot_timeout": 600.0,
    "start_timeout": None,
    "replace_timeout": 600.0,
    "lease": 120.0,
    "max_lifetime": None,
    "max_cost": None,
    "max_idle": None,
    "sample_every": 5.0,
    "console": "auto",
    "run": None,
    "trackers": (),
    "flush_timeout": 5.0,
    "traces": False,
    "chaos": None,
}


def checked(specs: Sequence[object], options: Mapping[str, Any]) -> Settings:
    """Check options and return the pool's settings.

    ``options``: a `PoolOptions` with all defaults filled in. An option that has its default value causes no import.
    """
    machines = {name: options[name] for name in MachineOptions.__annotations__ if name in options}
    checked_specs = chosen(specs, cast("MachineOptions", machines))
    _check_parts(options)
    nodes = Nodes.of(options["nodes"])
    if nodes.scale is not None:
        check_scaled(options["plugins"], options["keep"])
    source: Provider = checked_specs[0].provider
    if len(checked_specs) > 1:
        from .client.provider_fallback import ProviderFallback

        source = ProviderFallback(checked_specs, options["selection"])
    if options["chaos"] is not None:
        from .api.chaos import ChaosPlan

        if not isinstance(options["chaos"], ChaosPlan):
            raise SpecError(f"Pool: chaos takes a Chaos, as in Chaos(mtbf=15, seed=7), not {options['chaos']!r}.")
    image, volumes, checkpoints = (options[each] for each in ("image", "volumes", "checkpoints"))
    check_containers(image.container, checked_specs)
    if source.local and image is not NO_IMAGE:
        from .image.includes import on_this_computer

        image = on_this_computer(image)
    if volumes != ():
        from .api.volume import check_volumes

        volumes = check_volumes(volumes, local=source.local)
    if checkpoints is not None:
        from .checkpoint.store import checked_root

        checkpoints = checked_root("Pool: checkpoints", checkpoints)
    every_s = sample_option(options["sample_every"])
    name, worker, lifetime, cost = (options[each] for each in ("name", "worker", "max_lifetime", "max_cost"))
    start = options["start_timeout"]
    return Settings(
        name=None if name is None else pool_name(name),
        attach=None,
        specs=checked_specs,
        provider=source,
        nodes=nodes,
        worker=Worker(worker) if isinstance(worker, int) else worker,
        image=image,
        plugins=tuple(options["plugins"]),
        on_loss=options["on_loss"],
        checkpoints=checkpoints,
        boot_timeout_s=seconds("boot_timeout", options["boot_timeout"]),
        start_timeout_s=None if start is None else seconds("start_timeout", start),
        replace_timeout_s=seconds("replace_timeout", options["replace_timeout"]),
        lease_s=seconds("lease", options["lease"]),
        max_lifetime_s=None if lifetime is None else seconds("max_lifetime", lifetime),
        max_cost=None if cost is None else amount("max_cost", cost, "USD"),
        volumes=volumes,
        keep=None if options["keep"] is None else work_files("keep", options["keep"]),
        run=run_option(options["run"]),
        sample_every_s=every_s,
        max_idle_s=idle_option(options["max_idle"], every_s),
        trackers=_trackers(options),
        flush_s=flush_option(options["flush_timeout"]),
        traces=traces_option(options["traces"]),
    )


def _check_parts(options: Mapping[str, Any]) -> None:
    check_pool(options["plugins"], options["on_loss"], options["console"], options["selection"])
    image, worker = options["image"], options["worker"]
    if not isinstance(image, Image):
        refuse(f"image takes an Image, as in Image(pip=['numpy']), not {shown(image)}.")
    if not isinstance(worker, int | Worker):
        how = "how many tasks a node runs at a time, or Worker(concurrency=4, kind='thread')"
        refuse(f"worker takes {how}, not {shown(worker)}.")


def _trackers(options: Mapping[str, Any]) -> tuple[Tracker, ...]:
    if options["trackers"] == ():
        return ()
    from .record.trackers.process import checked_trackers

    return checked_trackers(options["trackers"], options["run"])
