"""Lives of pools on a Slurm cluster: `python -m slurm_lives`, and `make chaos-slurm`.

A life is drawn from its kind and its seed: `kinds` are the plays, `ground` is the cluster, of whose nodes each life has
a share, `site` is what a life has there, and `referee` decides what it has broken. Knows nothing of pytest.
"""
