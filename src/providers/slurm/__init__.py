"""The Slurm provider: the nodes of a pool are one job in a cluster's queue.

`fleet` manages the jobs of a pool, `submitter` calls sbatch, `endings` ends jobs, `site` has one method for each of
Slurm's commands, and `allocation` implements `Slurm.current()`. `step` has the programs that run on the nodes. Without
I/O: `squeue`, `jobs`, `script`, `accounting`, `notation`.

Public names: `provider.Slurm`, `surveyor.SlurmSurveyor`.
Open first: `fleet.py`.
"""

__all__ = ["provider"]
