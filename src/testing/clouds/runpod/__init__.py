"""A test cloud: RunPod on this computer, held to an extract of its schema.

Public names: `front.RunPodCloud`.
Open first: `front.py`.
"""

__all__ = ["front"]
