"""A cluster as sites have it, with a real Slurm: hosts of a lab, one to log in to and some that compute.

    with Lab() as lab, Cluster(lab, Site(nodes=4)) as cluster:
        job = cluster.submit("--nodes=2", "--gres=gpu:2", script="srun hostname")

`missing` says what is not there. `python -m cluster` brings one up to try things on. Knows nothing of the project.
"""

from .cluster import Cluster
from .needs import missing
from .site import Site

__all__ = ["Cluster", "Site", "missing"]
