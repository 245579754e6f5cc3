"""Machines for `outrider.testing.EC2` that are real: hosts of a lab, with metadata, cloud-init and a power switch."""

from .hypervisor import LabHypervisor

__all__ = ["LabHypervisor"]
