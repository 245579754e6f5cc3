"""The provider for Google Compute Engine.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `catalogue` has types and prices, and
`api` calls Google.

Public names: `provider.GCP`, `cloud.GCPSurveyor`.
Open first: `launcher.py`.
"""

__all__ = ["provider"]
