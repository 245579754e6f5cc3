"""Hyperstack.

`cloud` and `launcher` are the two halves of the cloud's port, `service` has address, limits, errors and key,
`catalogue` has types and prices.

Public names: `provider.Hyperstack`.
Open first: `launcher.py`.
"""
