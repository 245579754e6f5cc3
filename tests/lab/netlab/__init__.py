"""Real hosts on one machine: network namespaces with their own root, sshd and faults, to test what crosses networks.

    with Lab() as lab:
        one, two = lab.create_many(2)
        one.power_off()  # as a cloud does it: silence, no FIN and no RST

Needs root and Debian's tools; `missing` says what is not there. Knows nothing of pytest and nothing of the project.
"""

from .base import debian
from .commands import LabError
from .host import Host
from .identity import PASSWORD, PLAIN_USER, Sshd
from .index import PackageIndex, write_wheel
from .inventory import leftovers
from .lab import Lab
from .needs import missing
from .network import Network
from .state import sweep
from .wan import Wan

__all__ = [
    "PASSWORD",
    "PLAIN_USER",
    "Host",
    "Lab",
    "LabError",
    "Network",
    "PackageIndex",
    "Sshd",
    "Wan",
    "debian",
    "leftovers",
    "missing",
    "sweep",
    "write_wheel",
]
