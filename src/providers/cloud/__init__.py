"""Code that all cloud providers share: launches, polling, prices, leases and teardown.

Each cloud implements the interfaces in `port`, and describes its names and error codes in a `vendor.Vendor`. `fleet`
manages a pool's machines, `recorder` writes each creation to the journal before its request, `teardown` deletes
everything, and `http` calls JSON interfaces. Without I/O: `offers` (which machine types to request), `inventory`.

Public names: `port`, `provider.CloudProvider`, `vendor.Vendor`, `http.HttpApi`, `offers.Offer`, `recorder.Recorder`,
`account.AccountCloud`, `surveyor.CloudSurveyor`, `machine_start`, `labels`, `calls`.
Open first: `port.py`, then `fleet.py`.
"""

__all__ = [
    "account",
    "addresses",
    "caching",
    "calls",
    "fleet",
    "http",
    "inventory",
    "labels",
    "machine_start",
    "offers",
    "port",
    "provider",
    "recorder",
    "single_launch",
    "small_labels",
    "surveyor",
    "teardown",
    "vendor",
]
