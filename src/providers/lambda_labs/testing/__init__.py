"""A test cloud: Lambda on this computer. It is checked against an extract of Lambda's published schema.

Public names: `front.LambdaCloud`. Open first: `front.py`.
"""
