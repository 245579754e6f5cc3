"""The way to the login host breaks: in the middle of the work, or before sbatch has said which job it made."""

from __future__ import annotations

import time

from ..life import Kind, Life

LOST_S = 60.0
SBATCH = "/usr/local/bin/sbatch"  # which is found before the real one
LOSES = """\
#!/bin/sh
# As the real one; for a partition with a file in /tmp its answer is lost once, with the connection, so much later.
said=$(/usr/bin/sbatch "$@"); status=$?
for word; do
  lose=/tmp/lose-${word#--partition=}
  case $word in --partition=*) [ -e "$lose" ] && { sleep "$(cat "$lose")"; rm "$lose"; pid=$PPID
    while [ "$(cat /proc/$pid/comm)" != sshd ]; do pid=$(awk '{ print $4 }' /proc/$pid/stat); done
    kill -9 "$pid"; sleep 1; exit 1; };; esac
done
[ -z "$said" ] || echo "$said"
exit $status
"""


def lost_answer(life: Life) -> None:
    """the connection is lost with the answer of sbatch, which has made the job: it is found, and no other is made"""
    share = life.site.share
    login = share.cluster.login
    login.path(SBATCH).write_text(LOSES)
    login.path(SBATCH).chmod(0o755)
    lose = f"/tmp/lose-{share.partition}"
    share.cluster.run("tee", lose, stdin=f"{life.dice.choice((0.0, 0.2, 1.0, 4.0))}\\n")
    client = life.client(nodes=life.dice.randint(1, 3), rounds=2, within_s=200.0)
    life.ready(client)
    life.expect(not login.path(lose).exists(), "SLURM-1: no answer was lost, which proves nothing")
    life.end(client)


def login_cut(life: Life) -> None:
    """all connections to the login host end in mid-run, and none is let in for up to 5 s: the work goes on"""
    nodes = life.dice.randint(1, 4)
    client = life.client(nodes=nodes, goes_on=True)
    life.ready(client)
    life.passes(0.0, 2.0)
    login = life.site.share.cluster.login
    login.stop_sshd(sessions=True)
    try:
        life.passes(0.0, 5.0)
    finally:
        login.start_sshd()
    life.measured.append(("going on", life.mended(client, time.time(), LOST_S)))
    client.go()
    life.end(client)


KINDS = (Kind("lost-answer", lost_answer), Kind("login-cut", login_cut, alone=True))
