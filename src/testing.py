"""Tools for tests of code that must survive losses: chaos (faults) in pools of local nodes, and a simulator of pools.

Also a simulated cloud on this computer, and the tests that every provider must pass.

>>> from outrider import Pool
>>> from outrider.testing import Chaos
>>> pool = Pool(nodes=4, chaos=Chaos(mtbf=15, seed=7))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.testing.chaos.chaos import chaos
    from .engine.testing.chaos.check import Disturbance
    from .engine.testing.chaos.faults import (
        Fault,
        Freeze,
        FullDisk,
        HoldGil,
        Kill,
        KillDaemon,
        KillRank,
        Partition,
        Preempt,
        SlowLink,
    )
    from .engine.testing.chaos.options import Chaos
    from .engine.testing.chaos.report import Report, Strike
    from .engine.testing.chaos.step import step
    from .engine.testing.simulator import faults as simulated
    from .engine.testing.simulator.draw import draw
    from .engine.testing.simulator.play import Played, play
    from .engine.testing.simulator.referee import Violation
    from .engine.testing.simulator.scenario import CloudSpec, Job, Scenario
    from .engine.testing.simulator.shrink import shrink
    from .providers import contract as provider_contract
    from .providers.aws.testing import faults as aws_faults
    from .providers.aws.testing.behaviour import Behaviour
    from .providers.aws.testing.cloud import EC2
    from .providers.cloud.testing import checks as cloud_checks
    from .providers.cloud.testing import faults as cloud_faults
    from .providers.cloud.testing.hypervisor import Boot, Hypervisor, Paper
    from .providers.cloud.testing.machines import Times
    from .providers.gcp.testing.front import GCE
    from .providers.hyperstack.testing.front import HyperstackCloud
    from .providers.lambda_labs.testing.front import LambdaCloud
    from .providers.runpod.testing.front import RunPodCloud
    from .providers.vast.testing.front import Rentable, VastCloud

# The module of each public name, as in `outrider` itself. A name of `__all__` that is not in this table is the class of
# a fault to inject.
_HOMES = {
    "engine.testing.chaos.chaos": ("chaos",),
    "engine.testing.chaos.check": ("Disturbance",),
    "engine.testing.chaos.options": ("Chaos",),
    "engine.testing.chaos.report": ("Report", "Strike"),
    "engine.testing.chaos.step": ("step",),
    "engine.testing.simulator.draw": ("draw",),
    "providers.aws.testing.behaviour": ("Behaviour",),
    "providers.aws.testing.cloud": ("EC2",),
    "providers.cloud.testing.hypervisor": ("Boot", "Hypervisor", "Paper"),
    "providers.cloud.testing.machines": ("Times",),
    "providers.gcp.testing.front": ("GCE",),
    "providers.hyperstack.testing.front": ("HyperstackCloud",),
    "providers.lambda_labs.testing.front": ("LambdaCloud",),
    "providers.vast.testing.front": ("Rentable", "VastCloud"),
    "providers.runpod.testing.front": ("RunPodCloud",),
    "engine.testing.simulator.referee": ("Violation",),
    "engine.testing.simulator.scenario": ("CloudSpec", "Job", "Scenario"),
    "engine.testing.simulator.shrink": ("shrink",),
    "engine.testing.simulator.play": ("Played", "play"),
}
_MODULES = {
    "aws_faults": "providers.aws.testing.faults",
    "cloud_checks": "providers.cloud.testing.checks",
    "cloud_faults": "providers.cloud.testing.faults",
    "provider_contract": "providers.contract",
    "simulated": "engine.testing.simulator.faults",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "EC2",
    "GCE",
    "Behaviour",
    "Boot",
    "Chaos",
    "CloudSpec",
    "Disturbance",
    "Fault",
    "Freeze",
    "FullDisk",
    "HoldGil",
    "HyperstackCloud",
    "Hypervisor",
    "Job",
    "Kill",
    "KillDaemon",
    "KillRank",
    "LambdaCloud",
    "Paper",
    "Partition",
    "Played",
    "Preempt",
    "Rentable",
    "Report",
    "RunPodCloud",
    "Scenario",
    "SlowLink",
    "Strike",
    "Times",
    "VastCloud",
    "Violation",
    "aws_faults",
    "chaos",
    "cloud_checks",
    "cloud_faults",
    "draw",
    "play",
    "provider_contract",
    "shrink",
    "simulated",
    "step",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"outrider.{_MODULES[name]}")
    if name not in __all__:
        raise AttributeError(f"module 'outrider.testing' has no attribute {name!r}")
    home = _HOME_OF.get(name, "engine.testing.chaos.faults")
    globals()[name] = value = getattr(import_module(f"outrider.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
