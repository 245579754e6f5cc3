"""What campaigns of lives have in common: turns, clients in their processes, what no client may show, and reports.

A life is one play with clients of a pool, drawn from its kind and its seed. `campaigns` has lives on a test cloud,
`slurm_lives` has lives on a Slurm cluster. Knows nothing of pytest, nor of clouds and clusters.
"""
