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

from .importer import PID as _PID  # noqa: F401  loaded here, so that it has the number of the program itself

if TYPE_CHECKING:
    from .actors import events as events
    from .engine import integrations as integrations
    from .engine.api import accelerators as accelerators, errors as errors
    from .engine.api.accelerators import Accelerator as Accelerator
    from .engine.api.calls import (
        Call as Call,
        Group as Group,
        GroupStream as GroupStream,
        StreamCall as StreamCall,
    )
    from .engine.api.compute import Compute as Compute, StreamCompute as StreamCompute, compute as compute
    from .engine.api.errors import *  # noqa: F403
    from .engine.api.calls import gather as gather
    from .engine.api.image import Image as Image
    from .engine.api.instance import InstanceInfo as InstanceInfo, Peer as Peer
    from .engine.api.calls import Job as Job
    from .engine.api.plugin import Plugin as Plugin
    from .engine.api.secrets import Secret as Secret
    from .engine.api.settings import Nodes as Nodes, Spec as Spec, Worker as Worker
    from .engine.api.task_stack import TaskStack as TaskStack
    from .engine.api.volume import Volume as Volume
    from .engine.api.refs import Ref as Ref, SyncRef as SyncRef
    from .engine.checkpoint.checkpoint import Checkpoint as Checkpoint, checkpoint as checkpoint
    from .engine.record.log_calls import (
        log_artifact as log_artifact,
        log_metrics as log_metrics,
        log_params as log_params,
        log_text as log_text,
    )
    from .engine.plugins.registry import plugins as plugins
    from .engine.pool import ComputePool as ComputePool, Pool as Pool
    from .engine.runtime.instance_info import instance_info as instance_info
    from .engine.runtime.output_filter import silent as silent, stderr as stderr, stdout as stdout
    from .engine.runtime.preemption import (
        Preemption as Preemption,
        on_preemption as on_preemption,
        preemption as preemption,
        should_stop as should_stop,
        wait_preemption as wait_preemption,
    )
    from .engine.runtime.profile import profile as profile
    from .engine.runtime.instance_info import shard as shard
    from .engine.sync import SyncPool as SyncPool
    from .engine.record.trackers import trackers as trackers
    from .providers.aws.provider import AWS as AWS
    from .providers.containers.provider import Containers as Containers
    from .providers.gcp.provider import GCP as GCP
    from .providers.hyperstack.provider import Hyperstack as Hyperstack
    from .providers.lambda_labs.provider import Lambda as Lambda
    from .providers.runpod.provider import RunPod as RunPod
    from .providers.local.provider import Local as Local
    from .providers.slurm.provider import Slurm as Slurm
    from .providers.ssh import SSH as SSH, Host as Host
    from .providers.vast.provider import Vast as Vast

# The module of each public name. A module is imported when one of its names is first used, so that `import outrider` is
# fast. Public names that are not in this table are the classes of `outrider.errors`.
_HOMES = {
    "engine.api.accelerators": ("Accelerator",),
    "engine.api.calls": ("Call", "Group", "GroupStream", "StreamCall", "gather", "Job"),
    "engine.checkpoint.checkpoint": ("Checkpoint", "checkpoint"),
    "engine.api.image": ("Image",),
    "engine.runtime.output_filter": ("silent", "stderr", "stdout"),
    "engine.record.log_calls": ("log_artifact", "log_metrics", "log_params", "log_text"),
    "engine.api.plugin": ("Plugin",),
    "engine.plugins.registry": ("plugins",),
    "engine.pool": ("Pool", "ComputePool"),
    "engine.runtime.preemption": ("Preemption", "on_preemption", "preemption", "should_stop", "wait_preemption"),
    "engine.api.instance": ("InstanceInfo", "Peer"),
    "engine.runtime.instance_info": (
        "instance_info",
        "shard",
    ),
    "engine.runtime.profile": ("profile",),
    "engine.api.secrets": ("Secret",),
    "engine.api.settings": ("Nodes", "Spec", "Worker"),
    "engine.api.refs": ("Ref", "SyncRef"),
    "engine.sync": ("SyncPool",),
    "engine.api.compute": ("Compute", "StreamCompute", "compute"),
    "engine.api.task_stack": ("TaskStack",),
    "engine.api.volume": ("Volume",),
    "providers.aws.provider": ("AWS",),
    "providers.containers.provider": ("Containers",),
    "providers.gcp.provider": ("GCP",),
    "providers.hyperstack.provider": ("Hyperstack",),
    "providers.lambda_labs.provider": ("Lambda",),
    "providers.runpod.provider": ("RunPod",),
    "providers.local.provider": ("Local",),
    "providers.slurm.provider": ("Slurm",),
    "providers.ssh": ("SSH", "Host"),
    "providers.vast.provider": ("Vast",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    "accelerators": "engine.api.accelerators",
    "errors": "engine.api.errors",
    "events": "actors.events",
    "integrations": "engine.integrations",
    "trackers": "engine.record.trackers.trackers",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("outrider")
    elif name in _MODULES:
        value = _imported(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(_imported(_HOME_OF[name]), name)
    elif name == "__all__":
        value = sorted({*_MODULES, *_HOME_OF, *_errors()})
    elif (value := _errors().get(name)) is None:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}{_hint(name)}")
    globals()[name] = value
    return value


def _imported(room: str) -> Any:
    from importlib import import_module

    from .collector import at_rest  # `from . import collector` would fail: it first calls `__getattr__` of this module

    with at_rest():
        return import_module(f"{__name__}.{room}")


def _errors() -> dict[str, type]:
    from .engine.api import errors

    own = (each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__)
    return {each.__name__: each for each in own if not each.__name__.startswith("_")}


def _hint(name: str) -> str:
    from .engine.api.misuse import MEANING
    from .providers.shared.option_names import closest

    if name in MEANING:
        return f": {MEANING[name]}"
    close = closest(name, __getattr__("__all__"))
    return f": did you mean outrider.{close}?" if close else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
