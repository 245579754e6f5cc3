"""A test cloud: Compute Engine on this computer, held to Google's schema.

Public names: `front.GCE`.
Open first: `front.py`.
"""

__all__ = ["front"]
