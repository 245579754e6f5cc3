"""A random workload on local pools under random faults: ``make chaos``; see the README beside this folder."""
