"""A test cloud: Hyperstack on this computer, held to an extract of its schema.

Public names: `front.HyperstackCloud`.
Open first: `front.py`.
"""

__all__ = ["front"]
