"""The watchdog of a supervisor that has ended before anybody looked."""

from __future__ import annotations

import os
import select
import signal
import socket

from outrider.providers.local import watchdog


def test_a_supervisor_that_ended_before_its_watchdog_could_be_woken_is_noticed(tmp_path, monkeypatch):
    """Its client would else have waited for 8 s until it counted as one that stands still."""
    monkeypatch.setattr(watchdog, "START_MS", 0)
    pid = os.fork()
    if pid == 0:
        try:
            control, _client = socket.socketpair()
            if (supervisor := os.fork()) == 0:
                os._exit(7)
            os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOWAIT)
            watchdog._Watchdog(supervisor, control, -1, tmp_path).guard()
        finally:
            os._exit(99)
    end = os.pidfd_open(pid)
    if not select.select([end], [], [], 60)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
