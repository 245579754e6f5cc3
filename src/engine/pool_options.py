"""Declare each option of `Pool` once: its type, its default, and how it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from ..providers.base import Provider
from .api.image import Image
from .api.machine_spec import MachineNeeds, MachineOptions, Spec, chosen, max_cost
from .api.settings import ConsoleOption, Nodes, OnLossOption, Selection, Worker, check_pool, pool_name, seconds
from .api.volume import Volume, check_volumes
from .checkpoint.urls import checked_root
from .client.provider_fallback import ProviderFallback
from .image.includes import on_this_computer

if TYPE_CHECKING:
    from .api.plugin import Plugin
    from .testing.chaos.plan import Chaos


class AttachOptions(MachineNeeds, total=False):
    """The options of `Pool` and `Pool.attach`."""

    selection: Selection
    nodes: int | tuple[int, int] | Nodes
    worker: Worker | int
    image: Image
    plugins: Sequence[Plugin]
    on_loss: OnLossOption
    checkpoints: str | PathLike[str] | None
    volumes: Sequence[Volume]
    boot_timeout: float
    replace_timeout: float
    lease: float
    max_lifetime: float | timedelta | None
    max_cost: float | None
    console: ConsoleOption
    chaos: Chaos | None


class PoolOptions(MachineOptions, AttachOptions, total=False):
    """The options of `Pool`."""

    name: str | None


DEFAULTS: PoolOptions = {
    "selection": "cheapest",
    "name": None,
    "nodes": 1,
    "worker": Worker(),
    "image": Image(),
    "plugins": (),
    "on_loss": "auto",
    "checkpoints": None,
    "volumes": (),
    "boot_timeout": 600.0,
    "replace_timeout": 600.0,
    "lease": 120.0,
    "max_lifetime": None,
    "max_cost": None,
    "console": "auto",
    "chaos": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options that `Pool` was given, checked."""

    name: str | None
    attach: bool  # to what a dead client has left under that name
    specs: tuple[Spec, ...]
    provider: Provider  # the specs', or the choice among several
    nodes: Nodes
    worker: Worker
    image: Image
    plugins: tuple[Plugin, ...]
    on_loss: OnLossOption
    checkpoints: str | None  # a URL
    boot_timeout_s: float
    replace_timeout_s: float
    lease_s: float
    max_lifetime_s: float | None
    max_cost: float | None  # USD
    volumes: tuple[Volume, ...] = ()


def checked(specs: Sequence[object], options: Mapping[str, Any]) -> Settings:
    """``options``: a `PoolOptions` in which no default is missing.

    Raises:
        SpecError: an option that cannot mean anything.
    """
    machines = {name: options[name] for name in MachineOptions.__annotations__ if name in options}
    asked = chosen(specs, cast("MachineOptions", machines))
    check_pool(options["plugins"], options["on_loss"], options["console"], options["selection"])
    source = asked[0].provider if len(asked) == 1 else ProviderFallback(asked, options["selection"])
    name, root, worker, image = options["name"], options["checkpoints"], options["worker"], options["image"]
    if options["chaos"] is not None:
        from .testing.chaos.plan import checked_chaos

        checked_chaos(options["chaos"])
    lifetime, cost = options["max_lifetime"], options["max_cost"]
    return Settings(
        name=None if name is None else pool_name(name),
        attach=False,
        specs=asked,
        provider=source,
        nodes=Nodes.of(options["nodes"]),
        worker=Worker(worker) if isinstance(worker, int) else worker,
        image=on_this_computer(image) if source.local else image,
        plugins=tuple(options["plugins"]),
        on_loss=options["on_loss"],
        checkpoints=None if root is None else checked_root("Pool: checkpoints", root),
        boot_timeout_s=seconds("boot_timeout", options["boot_timeout"]),
        replace_timeout_s=seconds("replace_timeout", options["replace_timeout"]),
        lease_s=seconds("lease", options["lease"]),
        max_lifetime_s=None if lifetime is None else seconds("max_lifetime", lifetime),
        max_cost=None if cost is None else max_cost(cost, source),
        volumes=check_volumes(options["volumes"], local=source.local),
    )
