"""The provider for Google Compute Engine.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `network` creates firewall rules,
`catalogue` has types and prices, `api` and `credentials` call Google.

Public names: `provider.GCP`.
Open first: `launcher.py`.
"""
