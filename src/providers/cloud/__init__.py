"""The parts that all clouds share: launches, polling, prices, leases and teardown.

A cloud implements `port` and describes its terms in `vendor`; the modules here do the rest. `fleet` manages a pool's
machines, `recorder` writes each creation to the journal before its request, `teardown` deletes everything, and `http`
calls JSON interfaces. Without I/O: `offers` and `cooldowns` (which types to request), `instance_inventory`,
`failures`, `retries`.

Public names: `port`, `provider.CloudProvider`, `vendor.Vendor`, `http.HttpApi`, `offers.Offer`, `recorder.Recorder`.
Open first: `port.py`, then `fleet.py`.
"""
