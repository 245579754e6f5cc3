"""A test cloud: Lambda on this computer, held to an extract of its schema.

Public names: `front.LambdaCloud`.
Open first: `front.py`.
"""

__all__ = ["front"]
