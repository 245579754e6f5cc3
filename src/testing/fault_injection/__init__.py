"""Chaos: faults in real pools of local nodes, and checks that a training survives them.

`options` has the options of a plan, `plan` chooses faults, times and targets, `fault_injector` injects them, `check`
compares a run with faults to a run without, `report` draws the timeline, `pytest_plugin` has the fixture and the marks.

Public names: `options.Chaos`, `chaos.chaos`, `faults`, `report.Report`, `step.step`.
Open first: `plan.py`.
"""

__all__ = ["chaos", "check", "faults", "options", "report", "step"]
