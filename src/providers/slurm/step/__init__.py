"""Programs that run on the nodes of a Slurm job.

`step_server` lets the client in and ends what it started, `relay` carries a connection, `last_step` cancels a job whose
batch shell is gone.

Public names: `programs.texts`.
Open first: `step_server.py`.
"""
