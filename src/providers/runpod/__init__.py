"""RunPod.

`cloud` and `launcher` are the two halves of the cloud's port, `service` has address, limits and errors, `names` says
which pool a pod belongs to.

Public names: `provider.RunPod`.
Open first: `launcher.py`.
"""
