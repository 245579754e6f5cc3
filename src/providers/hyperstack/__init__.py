"""The provider for Hyperstack.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `service` has address, limits, errors and
key, `catalogue` has types and prices.

Public names: `provider.Hyperstack`.
Open first: `launcher.py`.
"""
