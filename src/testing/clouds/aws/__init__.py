"""A test cloud: EC2 on this computer, with moto behind it.

Public names: `cloud.EC2`, `behaviour.Behaviour`, `faults`.
Open first: `cloud.py`.
"""

__all__ = ["behaviour", "cloud", "faults"]
