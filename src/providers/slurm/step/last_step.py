"""Cancel a job whose last step this process is, if the node of the job's batch shell has failed.

    python3 -I -S last_step.py FOLDER BATCH_NODE

This file must be valid in Python 3.6. A step server turns into this program, by exec, when its client is gone. While
the batch shell lives, it ends the job after the last step, and this program exits at once. If the batch shell's node
has failed, Slurm keeps the job (``--no-kill``) until the time limit, even if nothing runs in it.

LAST-1: a job is cancelled only if none of its present nodes has the batch shell or another step.
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
    except FileNotFoundError as error:  # the command is not installed on the node
        sys.stderr.write(f"outrider: nobody ends job {job} before its time limit: {error}\n")
        return 1
    return 0


def is_last(node: str, batch_node: str, files: "list[str]", nodes: "list[str]") -> bool:
    """Return whether the job has no other step and no batch shell (LAST-1).

    Args:
        node: The node of this step.
        batch_node: The node on which the batch shell was started.
        files: The nodes whose steps have not reported their end; some of these steps may have failed.
        nodes: The nodes that the job still has.
    """
    return not ({batch_node, *files} - {node}).intersection(nodes)


def launcher_lives() -> bool:
    """Return whether the srun that started this step accepts connections. That srun is a child of the batch shell. True
    also if the answer is unknown.
    """
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
    """Return the nodes that the job has now; empty: the job has ended; None: Slurm does not answer."""
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
    """Return the nodes whose steps have not ended; None: the disk does not respond."""
    try:
        return os.listdir(os.path.join(folder, "nodes"))
    except FileNotFoundError:
        return []
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
