"""The messages between the executor and its fork server: msgpack arrays on one SOCK_SEQPACKET socket."""

from __future__ import annotations

# executor server -> fork server
# [SETUP, {env, cwd, address, hostname, threads, signals, preload}] for all workers, with the notice page's descriptor
SETUP = 1
# [FORK, worker, index, fresh, allotment], with the descriptors of pipe, stdout, stderr, stacks, and log socket if any
FORK = 2
KILL = 3  # [KILL, worker]
# fork server -> executor server: [worker, status, detail, died, held], sent when a worker is gone. status: from
# os.waitpid, -1 if the fork failed; died: the time by the monotonic clock; held: memory in bytes for which the worker
# was killed, or 0.
