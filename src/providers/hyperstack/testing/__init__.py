"""A test cloud: Hyperstack on this computer. It is checked against an extract of Hyperstack's published schema.

Public names: `front.HyperstackCloud`. Open first: `front.py`.
"""
