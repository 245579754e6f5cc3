"""A test cloud: Vast.ai on this computer. It is checked against an extract of Vast.ai's published schema.

Public names: `front.VastCloud`. Open first: `front.py`.
"""
