"""The server of `outrider ui`: web pages of runs that are updated while the runs continue.

`record_follower` reads new lines of a record (a run's folder), `updates` and `live_charts` decide what a page receives
(no I/O), `access` decides which requests are allowed (no I/O), `app` has the addresses. `report` makes the HTML.

Public names: `server.serve`, `server.loopback_socket`, `server.private_socket`.
Open first: `app.py`.
"""
