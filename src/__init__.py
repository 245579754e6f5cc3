"""Outrider runs ordinary Python functions on clusters that exist only while they are needed.

>>> from outrider import Local, Pool, compute
>>> @compute
... def double(x: int) -> int:
...     return 2 * x
>>> with Pool(provider=Local(), nodes=2) as pool:  # doctest: +SKIP
...     double(21) >> pool
42
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actors import events
    from .engine import integrations
    from .engine.api import accelerators, errors
    from .engine.api.accelerators import Accelerator
    from .engine.api.calls import Call, Group, GroupStream, Job, StreamCall, gather
    from .engine.api.compute import Compute, StreamCompute, compute
    from .engine.api.errors import (
        AuthError,
        BootstrapError,
        BroadcastFailed,
        BudgetExceeded,
        CapacityError,
        CheckpointError,
        CheckpointFenced,
        CleanupError,
        ConnectionLost,
        HostKeyError,
        NodeLost,
        NotACall,
        Outcome,
        OutriderError,
        PoolClosed,
        QueueTimeout,
        QuotaError,
        RemoteTraceback,
        SerializationError,
        SpecError,
        TaskError,
        TaskFailed,
        TaskKilled,
        TaskQuarantined,
        TaskStopped,
        TaskTimeout,
        VersionMismatch,
    )
    from .engine.api.image import Image
    from .engine.api.instance import InstanceInfo, Peer
    from .engine.api.plugin import Plugin
    from .engine.api.secrets import Secret
    from .engine.api.settings import Nodes, Spec, Worker
    from .engine.api.volume import Volume
    from .engine.checkpoint.checkpoint import Checkpoint, checkpoint
    from .engine.plugins.registry import plugins
    from .engine.pool import Pool
    from .engine.pool import Pool as ComputePool
    from .engine.runtime.instance_info import instance_info
    from .engine.runtime.output_filter import silent, stderr, stdout
    from .engine.runtime.preemption import Preemption, on_preemption, preemption, should_stop, wait_preemption
    from .engine.runtime.shards import shard
    from .engine.sync import SyncPool
    from .providers.aws.provider import AWS
    from .providers.local.provider import Local
    from .providers.ssh import SSH, Host

# Where each name lives: modules are imported when a name of theirs is first used, so `import outrider` costs nothing.
# What of `__all__` is not here is an error.
_HOMES = {
    "engine.api.accelerators": ("Accelerator",),
    "engine.api.calls": ("Call", "Group", "GroupStream", "Job", "StreamCall", "gather"),
    "engine.checkpoint.checkpoint": ("Checkpoint", "checkpoint"),
    "engine.api.image": ("Image",),
    "engine.runtime.output_filter": ("silent", "stderr", "stdout"),
    "engine.api.plugin": ("Plugin",),
    "engine.plugins.registry": ("plugins",),
    "engine.pool": ("Pool", "ComputePool"),
    "engine.runtime.preemption": ("Preemption", "on_preemption", "preemption", "should_stop", "wait_preemption"),
    "engine.api.instance": ("InstanceInfo", "Peer"),
    "engine.runtime.instance_info": ("instance_info",),
    "engine.runtime.shards": ("shard",),
    "engine.api.secrets": ("Secret",),
    "engine.api.settings": ("Nodes", "Spec", "Worker"),
    "engine.sync": ("SyncPool",),
    "engine.api.compute": ("Compute", "StreamCompute", "compute"),
    "engine.api.volume": ("Volume",),
    "providers.aws.provider": ("AWS",),
    "providers.local.provider": ("Local",),
    "providers.ssh": ("SSH", "Host"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "accelerators": "engine.api.accelerators",
    "errors": "engine.api.errors",
    "events": "actors.events",
    "integrations": "engine.integrations",
}
_ELSEWHERE = {"function": "compute"}  # as similar libraries call it

__all__ = [
    "AWS",
    "SSH",
    "Accelerator",
    "AuthError",
    "BootstrapError",
    "BroadcastFailed",
    "BudgetExceeded",
    "Call",
    "CapacityError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFenced",
    "CleanupError",
    "Compute",
    "ComputePool",
    "ConnectionLost",
    "Group",
    "GroupStream",
    "Host",
    "HostKeyError",
    "Image",
    "InstanceInfo",
    "Job",
    "Local",
    "NodeLost",
    "Nodes",
    "NotACall",
    "Outcome",
    "OutriderError",
    "Peer",
    "Plugin",
    "Pool",
    "PoolClosed",
    "Preemption",
    "QueueTimeout",
    "QuotaError",
    "RemoteTraceback",
    "Secret",
    "SerializationError",
    "Spec",
    "SpecError",
    "StreamCall",
    "StreamCompute",
    "SyncPool",
    "TaskError",
    "TaskFailed",
    "TaskKilled",
    "TaskQuarantined",
    "TaskStopped",
    "TaskTimeout",
    "VersionMismatch",
    "Volume",
    "Worker",
    "accelerators",
    "checkpoint",
    "compute",
    "errors",
    "events",
    "gather",
    "instance_info",
    "integrations",
    "on_preemption",
    "plugins",
    "preemption",
    "shard",
    "should_stop",
    "silent",
    "stderr",
    "stdout",
    "wait_preemption",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("outrider")
    from importlib import import_module

    if name in _MODULES:
        found: Any = import_module(f"{__name__}.{_MODULES[name]}")
    elif name in __all__:
        found = getattr(import_module(f"{__name__}.{_HOME_OF.get(name, 'engine.api.errors')}"), name)
    else:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}{_hint(name)}")
    globals()[name] = found
    return found


def _hint(name: str) -> str:
    from difflib import get_close_matches

    close = [_ELSEWHERE[name]] if name in _ELSEWHERE else get_close_matches(name, __all__, n=1)
    return f": did you mean outrider.{close[0]}?" if close else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
