"""The simulator: whole pools on virtual time, checked against what users are promised.

It runs Outrider's own actors, links, sessions and scheduler, and plays the cloud, the network, processes and the clock.
`draw` makes a scenario from a seed, `shrink` looks for the smallest one that fails, `rules/` has the promises.

Public names: `play.play`, `scenario.Scenario`, `shrink.shrink`, `campaign`, `faults`.
Open first: `play.py`.
"""
