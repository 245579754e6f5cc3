"""Lambda's On-Demand Cloud.

`cloud` and `launcher` are the two halves of the cloud's port, `service` has address, limits, errors and key,
`catalogue` has types and prices.

Public names: `provider.Lambda`.
Open first: `launcher.py`.
"""
