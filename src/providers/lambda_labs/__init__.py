"""The provider for Lambda's On-Demand Cloud.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `service` has address, limits, errors and
key, `catalogue` has types and prices.

Public names: `provider.Lambda`.
Open first: `launcher.py`.
"""
