"""Tools for tests of code that must survive losses: faults in real pools, a simulator of pools, and test clouds.

`fault_injection` breaks pools of local nodes, `simulator` plays whole pools on virtual time, and `clouds` imitates
clouds on this computer. `provider_contract` has the checks that every provider must pass.

>>> from outrider import Pool, testing
>>> pool = Pool(nodes=4, chaos=testing.Chaos(mtbf=15, seed=7))

Public names: `provider_contract`, `fault_injection`, `simulator`, `clouds`.
Open first: `fault_injection/options.py`, then `simulator/play.py` and `clouds/shared/front.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.api.chaos import ChaosReport
    from . import provider_contract as provider_contract
    from .clouds.aws import faults as aws_faults
    from .clouds.aws.behaviour import Behaviour
    from .clouds.aws.cloud import EC2
    from .clouds.gcp.front import GCE
    from .clouds.hyperstack.front import HyperstackCloud
    from .clouds.lambda_labs.front import LambdaCloud
    from .clouds.runpod.front import RunPodCloud
    from .clouds.shared import checks as cloud_checks
    from .clouds.shared import faults as cloud_faults
    from .clouds.shared.hypervisor import Boot, Hypervisor, Paper
    from .clouds.shared.machines import Times
    from .clouds.vast.front import Rentable, VastCloud
    from .fault_injection.chaos import chaos
    from .fault_injection.check import Disturbance
    from .fault_injection.faults import (
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
    from .fault_injection.options import Chaos
    from .fault_injection.report import Report, Strike
    from .fault_injection.step import step
    from .simulator import faults as simulated
    from .simulator.draw import draw
    from .simulator.play import Played, play
    from .simulator.referee import Violation
    from .simulator.scenario import CloudSpec, Job, Scenario
    from .simulator.shrink import shrink

# The module of each public name, as in `outrider` itself. A name of `__all__` that is not in this table is the class of
# a fault to inject.
_HOMES = {
    "engine.api.chaos": ("ChaosReport",),
    "testing.fault_injection.chaos": ("chaos",),
    "testing.fault_injection.check": ("Disturbance",),
    "testing.fault_injection.options": ("Chaos",),
    "testing.fault_injection.report": ("Report", "Strike"),
    "testing.fault_injection.step": ("step",),
    "testing.simulator.draw": ("draw",),
    "testing.clouds.aws.behaviour": ("Behaviour",),
    "testing.clouds.aws.cloud": ("EC2",),
    "testing.clouds.shared.hypervisor": ("Boot", "Hypervisor", "Paper"),
    "testing.clouds.shared.machines": ("Times",),
    "testing.clouds.gcp.front": ("GCE",),
    "testing.clouds.hyperstack.front": ("HyperstackCloud",),
    "testing.clouds.lambda_labs.front": ("LambdaCloud",),
    "testing.clouds.vast.front": ("Rentable", "VastCloud"),
    "testing.clouds.runpod.front": ("RunPodCloud",),
    "testing.simulator.referee": ("Violation",),
    "testing.simulator.scenario": ("CloudSpec", "Job", "Scenario"),
    "testing.simulator.shrink": ("shrink",),
    "testing.simulator.play": ("Played", "play"),
}
_MODULES = {
    "aws_faults": "testing.clouds.aws.faults",
    "cloud_checks": "testing.clouds.shared.checks",
    "cloud_faults": "testing.clouds.shared.faults",
    "provider_contract": "testing.provider_contract",
    "simulated": "testing.simulator.faults",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "EC2",
    "GCE",
    "Behaviour",
    "Boot",
    "Chaos",
    "ChaosReport",
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
    home = _HOME_OF.get(name, "testing.fault_injection.faults")
    globals()[name] = value = getattr(import_module(f"outrider.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
