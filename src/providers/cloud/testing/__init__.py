"""The parts that all test clouds share, on the standard library alone.

`front` serves JSON over HTTP, `schema` checks requests and replies against a published schema, `machines` and
`hypervisor` run the machines, `faults`, `clock` and `billing` do what their names say.

Public names: `front.CloudFront`, `machines.FrontMachine`, `hypervisor.Hypervisor`, `published.Published`, `checks`.
Open first: `front.py`.
"""
