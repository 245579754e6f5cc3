"""What is promised of losses, measured on the lab's hosts: the tests run it once, `benchmarks.lab` as often as wanted.

A scenario makes its hosts and its pool, breaks something, and returns what it measured; what must hold it asserts.
Times are comparable, because the hosts share this machine's clock. Knows nothing of pytest.
"""
