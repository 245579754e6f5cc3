"""The parts that all test clouds (imitations of clouds, for tests) share. They need only the standard library.

`front` serves JSON over HTTP, `schema` checks requests and replies against a published schema, `machines` and
`hypervisor` run the machines, `faults` has the faults that tests can cause, `clock` the test cloud's time, `billing`
the costs.

Public names: `front.CloudFront`, `machines.FrontMachine`, `hypervisor.Hypervisor`, `published.Published`, `checks`.
Open first: `front.py`.
"""

__all__ = [
    "billing",
    "checks",
    "clock",
    "connections",
    "extract",
    "faults",
    "front",
    "hypervisor",
    "machines",
    "published",
    "schema",
    "versions",
]
