"""The server of `outrider ui`: pages of runs that change while the runs go on.

`record_follower` reads new lines of a record, `updates` and `live_charts` decide what a page gets (pure), `access`
decides who is let in (pure), `app` has the addresses. The HTML is made by `report`.

Public names: `server.serve`, `server.loopback_socket`, `server.private_socket`.
Open first: `app.py`.
"""
