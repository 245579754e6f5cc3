"""A test cloud: Vast.ai on this computer, held to an extract of its schema.

Public names: `front.VastCloud`.
Open first: `front.py`.
"""

__all__ = ["front"]
