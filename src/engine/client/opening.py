"""The first steps of opening a pool, which need few imports: the pool's settings become arguments, and `Opening`
starts.

An `Opening` chooses the pool's names, and starts a local provider while the other modules are being imported. The
functions translate a pool's settings into the arguments of its provider, its machines and its actors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...providers.base import EntryPoints, LaunchRequest
from ..api.plugin import merged
from ..api.secrets import revealed_env
from ..api.settings import is_free, keyless, unique

if TYPE_CHECKING:
    from ...actors.interfaces import PoolSpec
    from ...providers.base import Fleet, Machine
    from ..api.settings import Settings
    from ..transport.requirement_check import Wanted
    from ..transport.ssh import PoolKey


# seconds to retry a lost connection before its node counts as lost; before that, heartbeats take 6 s to detect the loss
RECONNECT_S = 3.0

ENTRY_POINTS = EntryPoints(
    fork_server="outrider.engine.node.forkserver:serve",
    executor="outrider.engine.node.server:serve",
    template="outrider.engine.node.template:Template",
    # loaded before workers are forked, because the first call of each worker would import this module otherwise
    shared=("outrider.engine.serialization.program",),
)


def entry_points(settings: Settings) -> EntryPoints:
    """Return the functions that a provider's processes on this computer start with.

    The processes share the modules that plugins preload, except if the image sets environment variables: the import of
    a module may depend on them.
    """
    return ENTRY_POINTS if settings.image.env else replace(ENTRY_POINTS, preload=_preload(settings))


def new_client_key(settings: Settings) -> PoolKey | None:
    """Return a new SSH key for the pool; None: the provider does not use SSH."""
    if keyless(settings.provider):
        return None
    from ..transport.ssh import new_key

    return new_key()


def launch_request(settings: Settings, client_key: str) -> LaunchRequest:
    """Return the launch request for machines of the first `Spec`.

    For further specs, `ProviderFallback` makes the launch requests.
    """
    nodes = settings.nodes
    return settings.specs[0].applied_to(
        LaunchRequest(
            client_key=client_key,
            nodes=(nodes.desired if nodes.scale is None or nodes.max is None else nodes.max) + nodes.spare,
            least=nodes.min,
            lease_s=settings.lease_s,
            container=settings.image.container or "",
            max_lifetime_s=settings.max_lifetime_s,
        )
    )


def requirements(settings: Settings, fleet: Fleet) -> Callable[[Machine], Wanted]:
    """Return a function that returns the hardware that a machine must have.

    For a machine that costs money, return only the accelerator: the cloud's catalogue guarantees the other hardware.
    """

    def wanted(machine: Machine) -> Wanted:
        from ..transport.requirement_check import Wanted

        spec = settings.specs[0]
        if len(settings.specs) > 1:
            from .provider_fallback import FallbackFleet

            spec = (fleet.spec_of(machine.id) if isinstance(fleet, FallbackFleet) else None) or spec
        if not is_free(spec.provider):
            return Wanted(spec.accelerator)
        return Wanted(spec.accelerator, spec.vcpus, spec.memory_gb)

    return wanted


def executor_setup(settings: Settings) -> dict[str, Any]:
    worker, env = settings.worker, revealed_env(settings.image.env)
    if settings.checkpoints is not None:
        from ..checkpoint.store import VARIABLE as CHECKPOINTS

        env[CHECKPOINTS] = settings.checkpoints
    return {
        "slots": worker.concurrency,
        "kind": worker.kind,
        "env": env,
        "preload": list(_preload(settings)),
        "sample_every": settings.sample_every_s,
    }


def pool_spec(settings: Settings) -> PoolSpec:
    from ...actors.interfaces import PoolSpec, ScaleByLoad

    nodes = settings.nodes
    return PoolSpec(
        desired=nodes.desired,
        min=nodes.min,
        spare=nodes.spare,
        slots=settings.worker.concurrency,
        boot_timeout_s=settings.boot_timeout_s,
        start_timeout_s=settings.start_timeout_s,
        replace_timeout_s=settings.replace_timeout_s,
        reconnect_s=RECONNECT_S,
        lease_s=settings.lease_s,
        scale=None if nodes.scale is None or nodes.max is None else ScaleByLoad(nodes.max, nodes.idle),
    )


def plugin_packages(settings: Settings) -> list[Sequence[str]]:
    """Return for each plugin of the pool the packages that it needs on other computers."""
    types = [spec.accelerator.name for spec in settings.specs if spec.accelerator is not None]
    return [plugin.packages(types) for plugin in merged(settings.plugins, ())]


def _preload(settings: Settings) -> tuple[str, ...]:
    modules = [module for plugin in merged(settings.plugins, ()) for module in plugin.preload]
    return tuple(dict.fromkeys(modules))


class Opening:
    """A pool that is being opened.

    ``id`` is unique. ``tag`` is the pool's name at the provider. ``name`` is for people; other pools, also of other
    users, may have the same ``name``.
    """

    def __init__(self, settings: Settings) -> None:
        self.id = os.urandom(4).hex()
        self.name = settings.name or self.id
        self.tag = self.id if settings.name is None else unique(settings.name)
        self._settings = settings
        # only a single provider is opened here; several providers are opened later, one after the other
        alone = len(settings.specs) == 1
        self._begun = self._open(self.tag) if settings.provider.local and alone else None

    def take(self, tag: str) -> AbstractAsyncContextManager[Fleet]:
        """Return the provider's context, which the caller must enter now. ``tag``: the pool's name at the provider."""
        begun, self._begun = self._begun, None
        return begun or self._open(tag)

    def _open(self, tag: str) -> AbstractAsyncContextManager[Fleet]:
        return self._settings.provider.open(tag, entry_points(self._settings))

    async def drop(self) -> None:
        """End the provider's context, unless `take` has returned it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            import anyio  # imported here, because the provider's start comes before slow imports

            with anyio.CancelScope(shield=True), suppress(Exception):  # the caller raises another error already
                async with begun:
                    pass
