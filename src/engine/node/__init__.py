"""The programs of a node (the processes that run tasks on one machine): the executor, the fork server and the workers.

The executor is `server` (`daemon` starts it on rented machines, `bridge` connects its socket to SSH). It talks with the
client by `client_channels`; `worker_scheduler` with `slots` decides which worker runs an attempt (one try at a task),
`worker_pool` and `worker_connection` manage workers, `freeports` offers ports, `stored_blobs` keeps large values,
`peers` sends them to other nodes, `inspection` gets stacks and profiles, `sampler` measures, `notices` see preemptions.
A worker is forked by `forkserver` from `template` and is `worker`: `call` runs the user's function, `environ` sets its
variables, `blobs` maps its large values, `output` and `log_socket` pass on what it prints; `after_call` frees its
variables, and `between_tasks` with `limits` undoes what it changed.

Public names: `server.serve`, `forkserver.serve`, `template.Template`, `daemon.main`, `boot`, `context`, `blobs`,
`failure`.
Open first: `server.py`, then `call.py`.
"""

__all__ = [
    "after_call",
    "blobs",
    "bridge",
    "client_channels",
    "context",
    "environ",
    "event_loop",
    "exception_pickle",
    "facts",
    "failure",
    "freeports",
    "holdings",
    "limits",
    "log_sender",
    "log_socket",
    "notice_page",
    "output",
    "process",
    "rank_signals",
    "signal_requests",
    "stack_text",
    "stored_blobs",
    "task_profile",
    "worker_scheduler",
    "worker_streams",
]
