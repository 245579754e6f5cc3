"""Lives of pools on a test cloud behind a proxy that breaks HTTP: `python -m campaigns`, and `make chaos-aws`.

A life is drawn from its kind and its seed: `kinds` are the plays, `site` is what a life has (hosts, cloud, proxy,
clients), `proxy` has the faults, and `referee` decides what a life has broken. Knows nothing of pytest.
"""
