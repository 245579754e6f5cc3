"""The programs of a node: the executor, the fork server and the workers.

The executor (`server`; `daemon` on rented machines) speaks to the client, `worker_scheduler` decides which worker runs
an attempt, `worker_pool` keeps the processes, `worker` and `call` run user code. `memory_watch`, `holdings` and
`freeports` watch what tasks take; `stack_reader` and `profiling` look into them; `peers` sends objects to other nodes.

Public names: `server.serve`, `daemon.main`, `boot`, `context.current`, `context.TaskContext`, `blobs`.
Open first: `server.py`, then `call.py`.
"""
