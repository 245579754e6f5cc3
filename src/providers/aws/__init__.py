"""Amazon EC2.

`cloud` and `launcher` are the two halves of the port that every cloud implements, `network` makes a pool's security
group, `catalogue` and `prices` say what machines cost, `api` calls EC2 and repeats calls.

Public names: `provider.AWS`.
Open first: `launcher.py`.
"""
