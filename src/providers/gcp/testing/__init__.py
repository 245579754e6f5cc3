"""A test cloud: Compute Engine on this computer. It is checked against Google's published schema.

Public names: `front.GCE`. Open first: `front.py`.
"""
