"""What this machine lacks for a cluster, beside what a lab needs, in words for whoever reads why a test was skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import netlab

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
}
ADOPT = Path("/lib/security/pam_slurm_adopt.so")


def missing() -> list[str]:
    """One clause for each thing that is missing; empty: a cluster can be made here."""
    found = netlab.missing()
    for program, package in PACKAGES.items():
        if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
            found.append(f"no {program} (Debian package {package})")
    if not ADOPT.exists():
        found.append("no pam_slurm_adopt (Debian package libpam-slurm-adopt)")
    return found
