"""Machines for `outrider.testing.EC2` that are real: hosts of a lab, with metadata, cloud-init and a power switch."""

from .hypervisor import LabHypervisor
from .rented_containers import RentedContainers

__all__ = ["LabHypervisor", "RentedContainers"]
