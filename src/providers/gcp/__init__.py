"""Google Compute Engine.

`cloud` and `launcher` are the two halves of the cloud's port, `network` makes firewall rules, `catalogue` has types and
prices, `api` and `credentials` call Google.

Public names: `provider.GCP`.
Open first: `launcher.py`.
"""
