"""The simulator: whole pools on virtual time, checked against the promises to users.

It runs Outrider's own actors, links, sessions and scheduler, and simulates the cloud, the network, processes and the
clock. `draw` makes a scenario from a seed, `shrink` finds the smallest one that fails, `rules/` contains the promises.

Public names: `play.play`, `scenario.Scenario`, `shrink.shrink`, `campaign`, `faults`.
Open first: `play.py`.
"""
