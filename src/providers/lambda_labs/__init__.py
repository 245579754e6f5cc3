"""The provider for Lambda's On-Demand Cloud.

`api` describes the interface: address, limits, errors, key, types and prices. `cloud` implements the two protocols of
`providers.cloud.port`, and finds, launches and ends machines. `provider` has the user's options.

Public names: `provider.Lambda`, `cloud.LambdaSurveyor`.
Open first: `cloud.py`.
"""

__all__ = ["provider"]
