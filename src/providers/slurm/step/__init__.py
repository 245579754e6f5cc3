"""Programs that run on the nodes of a Slurm job.

`step_server` accepts the client's connections and ends the processes that it started, `relay` carries a connection,
and `last_step` cancels a job whose batch shell is gone.

Public names: `programs.texts`.
Open first: `step_server.py`.
"""

__all__ = ["programs"]
