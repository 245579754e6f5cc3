"""The server of `outrider ui`: web pages of runs that are updated while the runs continue.

`server` has the addresses, `access` decides which requests are allowed (no I/O), `pages` reads new lines of a record (a
run's folder), `live_charts` decides what a page receives (no I/O), `watching` sends it. The HTML is made in `report/`.

Public names: `server.serve`, `server.loopback_socket`, `server.private_socket`.
Open first: `server.py`.
"""

__all__ = ["server"]
