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
DATABASE = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
ADOPT = Path("/lib/security/pam_slurm_adopt.so")


def missing(*, accounting: bool = False) -> list[str]:
    """One clause for each thing that is missing; empty: a cluster can be made here, with ``accounting`` or without."""
    found = netlab.missing()
    for program, package in {**PACKAGES, **(DATABASE if accounting else {})}.items():
        if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
            found.append(f"no {program} (Debian package {package})")
    if not ADOPT.exists():
        found.append("no pam_slurm_adopt (Debian package libpam-slurm-adopt)")
    return found
