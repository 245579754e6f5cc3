"""The Slurm provider: the nodes of a pool are one job in a cluster's queue.

`fleet` manages the jobs of a pool, `submitter` calls sbatch, `site` has one method for each of Slurm's commands, and
`allocation` implements `Slurm.current()`. Without I/O: `squeue`, `jobs`, `job_ends`, `reasons`, `script`, `accounting`.

Public names: `provider.Slurm`.
Open first: `fleet.py`.
"""
