"""The simulator: runs whole pools on virtual time, and checks that Outrider keeps its promises to users.

The simulator runs Outrider's own actors, links, sessions and scheduler. It simulates the cloud, the network, processes
and the clock. `draw` makes a scenario from a seed, `shrink` reduces a failing scenario to a small one, and `rules/`
contains one check per promise.

Public names: `play.play`, `scenario.Scenario`, `shrink.shrink`, `campaign`, `faults`.
Open first: `play.py`.
"""

__all__ = ["cloud", "draw", "faults", "kept_values", "machines", "play", "referee", "scenario", "shrink"]
