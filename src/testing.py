"""Testing code that must survive: chaos for pools of local nodes, a simulator of pools, and a cloud on this computer.

>>> from outrider import Pool
>>> from outrider.testing import Chaos
>>> pool = Pool(nodes=4, chaos=Chaos(mtbf=15, seed=7))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.testing import faults as simulated
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
    from .engine.testing.chaos.plan import Chaos
    from .engine.testing.chaos.report import Report, Strike
    from .engine.testing.chaos.step import step
    from .engine.testing.draw import draw
    from .engine.testing.ec2 import faults as aws_faults
    from .engine.testing.ec2.behaviour import Behaviour
    from .engine.testing.ec2.cloud import EC2
    from .engine.testing.ec2.hypervisor import Boot, Hypervisor, Paper
    from .engine.testing.referee import Violation
    from .engine.testing.scenario import CloudSpec, Job, Scenario
    from .engine.testing.shrink import shrink
    from .engine.testing.simulator import Played, play

_HOMES = {
    "chaos.chaos": ("chaos",),
    "chaos.check": ("Disturbance",),
    "chaos.faults": (
        "Fault",
        "Freeze",
        "FullDisk",
        "HoldGil",
        "Kill",
        "KillDaemon",
        "KillRank",
        "Partition",
        "Preempt",
        "SlowLink",
    ),
    "chaos.plan": ("Chaos",),
    "chaos.report": ("Report", "Strike"),
    "chaos.step": ("step",),
    "draw": ("draw",),
    "ec2.behaviour": ("Behaviour",),
    "ec2.cloud": ("EC2",),
    "ec2.hypervisor": ("Boot", "Hypervisor", "Paper"),
    "referee": ("Violation",),
    "scenario": ("CloudSpec", "Job", "Scenario"),
    "shrink": ("shrink",),
    "simulator": ("Played", "play"),
}
_MODULES = {"aws_faults": "ec2.faults", "simulated": "faults"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "EC2",
    "Behaviour",
    "Boot",
    "Chaos",
    "CloudSpec",
    "Disturbance",
    "Fault",
    "Freeze",
    "FullDisk",
    "HoldGil",
    "Hypervisor",
    "Job",
    "Kill",
    "KillDaemon",
    "KillRank",
    "Paper",
    "Partition",
    "Played",
    "Preempt",
    "Report",
    "Scenario",
    "SlowLink",
    "Strike",
    "Violation",
    "aws_faults",
    "chaos",
    "draw",
    "play",
    "shrink",
    "simulated",
    "step",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOME_OF.get(name)
    if name in _MODULES:
        return import_module(f"outrider.engine.testing.{_MODULES[name]}")
    if home is None:
        raise AttributeError(f"module 'outrider.testing' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"outrider.engine.testing.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
