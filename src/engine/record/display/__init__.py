"""Displays of a pool's events: the console, a notebook, and the log of the application.

Each display is a sink: `plain` prints lines, `live` draws a table (`table`), `notebook` and `log` say where they show.
`pool_view` computes the state that is drawn, `descriptions` converts events to text, `writer` is the thread that
writes.

Public names: `descriptions.describe`, `descriptions.pool_use`, `notebook.snapshot_page`.
Open first: `plain.py`, then `pool_view.py`.
"""

__all__ = ["descriptions", "live", "log", "notebook", "plain"]
