"""The messages between the executor and its fork server: msgpack arrays on one SOCK_SEQPACKET socket."""

from __future__ import annotations

# Requests of the executor server to the fork server.
# [SETUP, {env, cwd, address, hostname, threads, signals, preload}], once for all workers; with the descriptor of the
# notice page (shared memory for preemption notices)
SETUP = 1
# [FORK, worker, slot, fresh, allotment]; with the descriptors of the worker's pipe, stdout, stderr, stack file, and log
# socket if there is one
FORK = 2
KILL = 3  # the request to kill a worker: [KILL, worker]
# The fork server's only message to the executor server: [worker, status, detail, died, held], sent when all processes
# of a worker have ended. status: from os.waitpid, -1 if the fork failed. detail: text for the error. died: time of
# death by time.monotonic(). held: memory in bytes if the worker was killed because it exceeded its limit, else 0.
