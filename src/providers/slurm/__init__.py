"""Slurm: the nodes of a pool are one job in a cluster's queue.

`fleet` keeps the jobs of a pool, `submitter` calls sbatch, `site` has each of Slurm's commands as a call, `allocation`
serves `Slurm.current()`. Pure: `squeue`, `jobs`, `job_ends`, `reasons`, `script`, `accounting`.

Public names: `provider.Slurm`.
Open first: `fleet.py`.
"""
