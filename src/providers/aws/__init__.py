"""The provider for Amazon EC2.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `network` creates a pool's security group,
`catalogue` and `prices` provide the prices of machines, `api` calls EC2 with retries.

Public names: `provider.AWS`.
Open first: `launcher.py`.
"""
