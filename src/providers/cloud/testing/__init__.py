"""The parts that all test clouds share. They need only the standard library.

`front` serves JSON over HTTP, `schema` checks requests and replies against a published schema, `machines` and
`hypervisor` run the machines; `faults`, `clock` and `billing` are described by their names.

Public names: `front.CloudFront`, `machines.FrontMachine`, `hypervisor.Hypervisor`, `published.Published`, `checks`.
Open first: `front.py`.
"""
