"""The messages between the executor and its fork server: msgpack arrays on one SOCK_SEQPACKET socket."""

from __future__ import annotations

# executor server -> fork server
SETUP = 1  # [SETUP, {env, cwd, address, hostname, threads, signals, preload}], the notice page's descriptor: for all
# [FORK, worker, index, fresh, allotment], and the descriptors of its pipe, stdout, stderr, stacks, and what is logged
FORK = 2
KILL = 3  # [KILL, worker]
# fork server -> executor server: [worker, status, detail, died, held] of one that is gone; status: of os.waitpid, -1:
# not forked; died: by the monotonic clock; held: the memory in bytes for which it was killed, or 0
