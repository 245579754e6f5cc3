"""Plugins for frameworks, one module for each, and the registry that finds them.

Only a framework's own plugin imports the framework. `rank_layout` places ranks on nodes and GPUs, `cluster` has the
common parts of Dask and Ray, `pmi` serves MPI.

Public names: `registry.plugins`, `rank_layout.Ranks`.
Open first: `torch.py`, as an example of a plugin.
"""

__all__ = ["rank_layout", "registry"]
