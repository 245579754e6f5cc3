"""A test cloud: RunPod on this computer. It is checked against an extract of RunPod's published schema.

Public names: `front.RunPodCloud`. Open first: `front.py`.
"""
