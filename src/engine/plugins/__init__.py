"""Plugins for frameworks, a module for each, and the registry that finds them.

A framework is imported by its plugin alone. `rank_layout` places ranks on nodes and GPUs, `cluster` has the common
parts of Dask and Ray, `pmi` serves MPI.

Public names: `registry.plugins`, `rank_layout.Ranks`.
Open first: `torch.py`, as an example of a plugin.
"""
