"""Vast.ai.

`cloud` and `launcher` are the two halves of the cloud's port, `service` has address, limits, errors, key and account,
`catalogue` turns offers into types.

Public names: `provider.Vast`.
Open first: `launcher.py`.
"""
