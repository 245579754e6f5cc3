"""Cancel the job that this step of it is the last of, if nobody else can: the node of its batch shell has failed.

    python3 -I -S last_step.py FOLDER BATCH_NODE

This file must be understood by Python 3.6. A step server becomes it when its client is gone. While the batch shell
lives, it ends the job when all steps have ended, and this program ends at once. When its node has failed, Slurm goes
on with the job (``--no-kill``) until the time limit, whether anything runs in it or not.

LAST-1: a job is cancelled only when none of the nodes that it has is that of the batch shell, or has another step.
"""

import os
import socket
import subprocess
import sys
import time

LOOK_S = 10.0
ANSWER_S = 30.0
CONNECT_S, TRIES = 5.0, 3


def main() -> int:
    folder, batch_node = sys.argv[1:3]
    job, node = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if node == batch_node:
        return 0
    try:
        while not launcher_lives():
            nodes = nodes_of(job)
            if nodes == []:
                return 0
            files = steps(folder)
            if nodes is not None and files is not None and is_last(node, batch_node, files, nodes):
                sys.stderr.write(f"outrider: job {job} is cancelled, as nothing runs in it: node {batch_node} failed\n")
                return subprocess.call(["scancel", job])  # noqa: S603, S607
            time.sleep(LOOK_S)
    except FileNotFoundError as error:  # a command of Slurm's
        sys.stderr.write(f"outrider: nobody ends job {job} before its time limit: {error}\n")
        return 1
    return 0


def is_last(node: str, batch_node: str, files: "list[str]", nodes: "list[str]") -> bool:
    """Decide whether no other step of the job is left, and no batch shell. ``files``: the nodes whose steps have not
    said that they have ended, some of which have failed; ``nodes``: those that the job has. See LAST-1.
    """
    return not ({batch_node, *files} - {node}).intersection(nodes)


def launcher_lives() -> bool:
    """Return whether the srun of this step, a child of the batch shell, can be connected to; True: it is not known."""
    host, port = os.environ.get("SLURM_SRUN_COMM_HOST", ""), os.environ.get("SLURM_SRUN_COMM_PORT", "")
    if not host or not port.isdigit():
        return True
    for left in reversed(range(TRIES)):
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
        except OSError:
            if left:
                time.sleep(1.0)
        else:
            return True
    return False


def nodes_of(job: str) -> "list[str] | None":
    """Return the nodes that the job has now; none: it has ended. None: Slurm does not say."""
    try:
        shown = output_of("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        return output_of("scontrol", "show", "hostnames", shown).split() if shown else []
    except subprocess.CalledProcessError as error:
        return [] if "invalid job id" in str(error.output).lower() else None
    except subprocess.TimeoutExpired:
        return None


def output_of(*argv: str) -> str:
    text = subprocess.check_output(  # noqa: S603
        argv, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, universal_newlines=True, timeout=ANSWER_S
    )
    return str(text).strip()


def steps(folder: str) -> "list[str] | None":
    """Return the nodes whose steps have not ended; None: the disk does not say."""
    try:
        return os.listdir(os.path.join(folder, "nodes"))
    except FileNotFoundError:
        return []
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
