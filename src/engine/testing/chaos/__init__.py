"""Chaos: faults in real pools of local nodes, and checks that a training survives them.

`plan` chooses faults, times and targets, `fault_injector` makes them happen, `check` compares a disturbed run with an
undisturbed one, `report` draws the timeline, `pytest_plugin` has the fixture and the marks.

Public names: `plan.Chaos`, `chaos.chaos`, `faults`, `report.Report`, `step.step`.
Open first: `plan.py`.
"""
