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
    from .engine import accelerators, errors, integrations
    from .engine.accelerators import Accelerator
    from .engine.calls import Call, Group, GroupStream, Job, StreamCall, gather
    from .engine.checkpoint.checkpoint import Checkpoint, checkpoint
    from .engine.errors import (
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
    from .engine.image.spec import Image
    from .engine.mutes import silent, stderr, stdout
    from .engine.on_preemption import on_preemption, wait_preemption
    from .engine.plugins.base import Plugin
    from .engine.plugins.registry import plugins
    from .engine.pool import Pool
    from .engine.pool import Pool as ComputePool
    from .engine.preemption import Preemption, preemption, should_stop
    from .engine.runtime import InstanceInfo, Peer, instance_info
    from .engine.secrets import Secret
    from .engine.shards import shard
    from .engine.spec import Nodes, Worker
    from .engine.sync import SyncPool
    from .engine.task import Compute, StreamCompute, compute
    from .engine.volume import Volume
    from .engine.wanted import Spec
    from .providers.aws.provider import AWS
    from .providers.local.provider import Local
    from .providers.ssh import SSH, Host

# Where each name lives: modules are imported when a name of theirs is first used, so `import outrider` costs nothing.
_HOMES = {
    "actors": ("events",),
    "engine": ("accelerators", "errors", "integrations"),
    "engine.accelerators": ("Accelerator",),
    "engine.calls": ("Call", "Group", "GroupStream", "Job", "StreamCall", "gather"),
    "engine.checkpoint.checkpoint": ("Checkpoint", "checkpoint"),
    "engine.errors": (
        "AuthError",
        "BootstrapError",
        "BroadcastFailed",
        "BudgetExceeded",
        "CapacityError",
        "CheckpointError",
        "CheckpointFenced",
        "CleanupError",
        "ConnectionLost",
        "HostKeyError",
        "NodeLost",
        "NotACall",
        "Outcome",
        "OutriderError",
        "PoolClosed",
        "QueueTimeout",
        "QuotaError",
        "RemoteTraceback",
        "SerializationError",
        "SpecError",
        "TaskError",
        "TaskFailed",
        "TaskKilled",
        "TaskQuarantined",
        "TaskStopped",
        "TaskTimeout",
        "VersionMismatch",
    ),
    "engine.image.spec": ("Image",),
    "engine.mutes": ("silent", "stderr", "stdout"),
    "engine.on_preemption": ("on_preemption", "wait_preemption"),
    "engine.plugins.base": ("Plugin",),
    "engine.plugins.registry": ("plugins",),
    "engine.pool": ("Pool", "ComputePool"),
    "engine.preemption": ("Preemption", "preemption", "should_stop"),
    "engine.runtime": ("InstanceInfo", "Peer", "instance_info"),
    "engine.shards": ("shard",),
    "engine.secrets": ("Secret",),
    "engine.spec": ("Nodes", "Worker"),
    "engine.sync": ("SyncPool",),
    "engine.task": ("Compute", "StreamCompute", "compute"),
    "engine.volume": ("Volume",),
    "engine.wanted": ("Spec",),
    "providers.aws.provider": ("AWS",),
    "providers.local.provider": ("Local",),
    "providers.ssh": ("SSH", "Host"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_RENAMED = {"ComputePool": "Pool"}
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
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}{_hint(name)}")
    from importlib import import_module

    if "." not in home:  # the name is a module of this package
        found: Any = import_module(f"{__name__}.{home}.{name}")
    else:
        found = getattr(import_module(f"{__name__}.{home}"), _RENAMED.get(name, name))
    globals()[name] = found
    return found


def _hint(name: str) -> str:
    from difflib import get_close_matches

    close = [_ELSEWHERE[name]] if name in _ELSEWHERE else get_close_matches(name, __all__, n=1)
    return f": did you mean outrider.{close[0]}?" if close else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
