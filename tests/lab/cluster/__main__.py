"""`make slurm`: a cluster to try things on, until Ctrl-C; it says how to log in."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from netlab import PLAIN_USER, Lab

from . import Cluster, Site, missing


def main() -> int:
    usual = Site()
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    parser.add_argument("--nodes", type=int, default=usual.nodes, help="compute hosts (default: %(default)s)")
    parser.add_argument("--gpus", type=int, default=usual.gpus, help="of each (default: %(default)s)")
    parser.add_argument(
        "--closed", action="store_true", help="nobody may log in to a node by SSH, with a job or without"
    )
    parser.add_argument("--accounting", action="store_true", help="with a database of jobs, for sacct")
    given = parser.parse_args()
    if lacks := missing(accounting=given.accounting):
        print(f"no cluster on this machine: {'; '.join(lacks)}", file=sys.stderr)
        return 1
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    began = time.monotonic()
    site = Site(nodes=given.nodes, gpus=given.gpus, ssh_to_nodes=not given.closed, accounting=given.accounting)
    with Lab() as lab, Cluster(lab, site) as cluster:
        known_hosts = lab.key.with_name("known_hosts")
        known_hosts.write_text(cluster.login.known_hosts)
        options = f"-i {lab.key} -o UserKnownHostsFile={known_hosts}"
        print(f"{given.nodes} nodes are idle after {time.monotonic() - began:.1f} s. Log in, and end it by Ctrl-C:")
        print(f"ssh {options} {PLAIN_USER}@{cluster.login.address}", flush=True)
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
