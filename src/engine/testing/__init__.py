"""Tools for testing code that must survive failures: chaos for real pools, and a simulator.

Public names: `chaos`, `simulator`. Users import them from `outrider.testing`.
Open first: `chaos/options.py`.
"""
