"""The provider for Vast.ai.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `service` has address, limits, errors, key
and account, `catalogue` turns offers into types.

Public names: `provider.Vast`.
Open first: `launcher.py`.
"""
