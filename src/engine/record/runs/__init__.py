"""The record of a run: a folder with the run's events, output, metrics and costs.

`writer` is the thread that writes, with `logged` for log records; `reader` reads a record for the commands; `lines` has
the format of both. `control` sends requests to the program that owns a run, `retention` removes old records.

Public names: `reader.Run`, `reader.runs_in`, `names.runs_folder`, `writer.RunWriter`, `lines`, `metrics.metrics_in`,
`control.ask`, `nodes.nodes_now`, `description`, `status`, `logged`, `retention.remove`, `tensorboard`.
Open first: `reader.py`, then `writer.py`.
"""

__all__ = [
    "control",
    "description",
    "files",
    "lines",
    "logged",
    "metrics",
    "names",
    "nodes",
    "reader",
    "retention",
    "status",
    "tensorboard",
    "writer",
]
