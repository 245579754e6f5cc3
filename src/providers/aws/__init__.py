"""The provider for Amazon EC2.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `launch` builds their requests, `network`
creates a pool's security group, `catalogue` has types and prices, `api` calls EC2, and `errors` decides about retries
and errors.

Public names: `provider.AWS`, `cloud.AWSSurveyor`.
Open first: `launcher.py`.
"""

__all__ = ["provider"]
