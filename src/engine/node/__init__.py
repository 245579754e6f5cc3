"""The programs of a node (the processes that run tasks on one machine): the executor, the fork server and the workers.

The executor (`server`; `daemon` starts it on rented machines) communicates with the client. `worker_scheduler` decides
which worker runs an attempt (one try at a task), `worker_pool` manages the workers, `worker` and `call` run user code.
`peers` sends objects to other nodes; `inspection` answers requests for the stacks and profiles of tasks.

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
