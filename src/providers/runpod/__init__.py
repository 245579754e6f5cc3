"""The provider for RunPod.

`cloud` and `launcher` implement the two protocols of `providers.cloud.port`, `service` has address, limits and errors,
`names` has the names of pods, which contain the pool.

Public names: `provider.RunPod`.
Open first: `launcher.py`.
"""
