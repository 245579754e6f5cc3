"""The programs of a node: the executor, the fork server and the workers.

The executor (`server`; `daemon` on rented machines) communicates with the client, `worker_scheduler` decides which
worker runs an attempt (one try at a task), `worker_pool` manages the worker processes, `worker` and `call` run user
code. `memory_watch`, `holdings` and `freeports` track the resources of tasks; `stack_reader` and `profiling` inspect
running tasks; `peers` sends objects to other nodes.

Public names: `server.serve`, `daemon.main`, `boot`, `context.current`, `context.TaskContext`, `blobs`.
Open first: `server.py`, then `call.py`.
"""
