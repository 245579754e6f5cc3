"""The parts that all clouds share: launches, polling, prices, leases and teardown.

A cloud implements `port` and describes its words in `vendor`; the rest is done here: `fleet` keeps a pool's machines,
`recorder` writes each creation before it happens, `teardown` deletes everything, `http` calls JSON interfaces.
Pure: `offers` and `cooldowns` (which types to request), `instance_inventory`, `failures`, `retries`.

Public names: `port`, `provider.CloudProvider`, `vendor.Vendor`, `http.HttpApi`, `offers.Offer`, `recorder.Recorder`.
Open first: `port.py`, then `fleet.py`.
"""
