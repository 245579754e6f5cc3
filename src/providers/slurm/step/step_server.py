"""Accept a client's SSH connections on one node of a Slurm job, over a unix socket, and end the processes that the
client started.

    python3 -I -S step_server.py FOLDER --lease=120 [--grace=30] [--lifetime=3600] [--batch-node=c0]

This file must be valid in Python 3.6. A step of the job runs it once on each node. It does not listen on TCP: a client
that may run a step of the job, or log in to the node as its user, connects to a unix socket. ``relay.py`` connects its
streams to that socket, or passes their descriptors. Each connection gets an sshd of its own, with a host key created
here. That sshd accepts only the keys in ``FOLDER/authorized_keys``. "A Slurm job's nodes" in docs/protocol.md lists the
files through which client and server find each other.

STEP-1: the server ends when nobody has renewed its lease in time (by a change to the times of the lease's file), or
when the client asks it to end, even if its processes or other clients still live.
STEP-2: when the server has ended, no process that the server or its connections started still runs on this node, and
none of their files is left here.
STEP-3: the commands of a connection have the environment variables of the step, whatever characters the values contain,
except the variables with the task's rank and the number of tasks. No other user of the node can read these variables.
"""

import argparse
import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

# The names of files in the job's folder.
NODES, KEYS, LIMIT, END, LAST = "nodes", "authorized_keys", "limit", "end", "last_step.py"
FIRST_LEASE_S = 30.0  # seconds added to the first lease, as the client first has to notice that the job runs
LOOK_S = 1.0  # seconds between two listings of the job's folder, which may be on a slow disk
HAND_OVER_S = 1.0  # seconds to wait for the first byte of a relay, which sends it at once
KILL_S = 10.0  # seconds to wait until killed processes are gone; some first wait for a disk
PREFIX = "outrider-step-"
SOCKET_BYTES = 100  # longest path (bytes) of the socket; sun_path has 108 bytes
SAFE = re.compile(r"[A-Za-z0-9_./@+-]+")  # paths without characters that are special to sshd or a shell
WHERE_SSHD_IS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin")
# Variables that are not passed on: they describe another login, or the node's own sshd sets them.
NOT_PASSED = re.compile(
    r"HOME|USER|LOGNAME|SHELL|MAIL|PWD|OLDPWD|SHLVL|_|TERM|DISPLAY|XAUTHORITY|SSH_.*"
    r"|XDG_RUNTIME_DIR|XDG_SESSION_.*|DBUS_SESSION_BUS_ADDRESS"
    # The step has one task, the server: libraries would take these variables for the rank and world size of the user's
    # job.
    r"|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS|NPROCS|NTASKS_PER_.*|TASKS_PER_NODE)"
    r"|SLURM_STEP_(NUM_TASKS|TASKS_PER_NODE)|PMI_.*|PMI2_.*|PMIX_.*"
    r"|PPID|OPTIND"  # shell variables whose assignment ends some shells
)
VARIABLE = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
# Names of exported functions in bash, current and old form.
FUNCTION = re.compile(rb"BASH_FUNC_([A-Za-z_][A-Za-z0-9_]*)(?:%%|\(\))")
CONFIG = """\
HostKey {here}/host_key
AuthorizedKeysFile {here}/authorized_keys
ForceCommand exec /bin/sh {here}/session
PidFile none
UsePAM no
StrictModes no
UseDNS no
PasswordAuthentication no
ChallengeResponseAuthentication no
PermitUserRC no
PrintMotd no
PrintLastLog no
AllowAgentForwarding no
MaxSessions 100
LoginGraceTime 60
ClientAliveInterval 15
ClientAliveCountMax 4
LogLevel ERROR
"""
# sshd runs this script by the user's own shell, after that shell's start-up files. The variables are in this file
# instead of in a command's arguments, because every user of the node can read arguments. If sh is bash, it refuses to
# set some variables (UID), which it has already; in POSIX mode, bash would exit at such an assignment.
SESSION = b"""\
set -- "$SSH_ORIGINAL_COMMAND" "$BASH_VERSION"
unset SSH_ORIGINAL_COMMAND
[ -z "$2" ] || set +o posix
{
%s
} 2>/dev/null
if [ -n "$1" ]; then exec /bin/sh -c "$1"; fi
exec "${SHELL:-/bin/sh}" -l
"""


class Unusable(Exception):
    """The node cannot be used; the text says why, and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description="let a client in on one node of a Slurm job")
    parser.add_argument("folder", help="of the job, on the shared disk")
    parser.add_argument("--lease", type=float, required=True, help="seconds without a client after which it ends")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--lifetime", type=float, default=0.0, help="seconds after which it ends in any case; 0: never")
    parser.add_argument("--batch-node", default="", help="the node of the job's batch shell, which may fail")
    options = parser.parse_args()
    os.umask(0o077)
    signals = Signals()
    node, local = Node(options.folder), ""
    try:
        adopt_orphans()
        local = local_folder(node)
        server = Server(node, local, signals, options.lease, options.grace)
        server.serve(options.lifetime)
    except (Unusable, OSError) as error:
        why = str(error) if isinstance(error, Unusable) else f"node {node.name} cannot be used: {error}"
        sys.stderr.write(f"outrider: {why}\n")
        with contextlib.suppress(OSError):  # the client has removed the job's folder, or the disk is full
            node.publish({"error": why})
        return 1
    finally:
        end_descendants(KILL_S)
        if local:
            shutil.rmtree(local, ignore_errors=True)
    if server.abandoned and options.batch_node:
        last = os.path.join(node.folder, LAST)
        os.execv(sys.executable, [sys.executable, "-I", "-S", last, node.folder, options.batch_node])  # noqa: S606
    return 0


class Node:
    """One node and its files in the job's folder."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.job = os.environ.get("SLURM_JOB_ID", "0")
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self._file = os.path.join(self.folder, NODES, self.name)

    def publish(self, more: "dict[str, str]") -> None:
        """Write the node's file atomically."""
        step = f"{self.job}.{os.environ.get('SLURM_STEP_ID', '0')}"
        known = {"job": self.job, "step": step, "node": self.name, "user": self.user}
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(self._file), 0o700)
        write(self._file, json.dumps(dict(known, **more)) + "\n")

    def withdraw(self) -> None:
        with contextlib.suppress(OSError):  # the folder, or its disk, is gone
            os.unlink(self._file)

    def orders(self) -> "tuple[bool, float | None]":
        """Return whether this step has to end, and the seconds to the time limit once the limit is near.

        Listing the folder opens it, which makes NFS refresh its cache; a lookup by name would be up to 30 s old.
        """
        try:
            names = set(os.listdir(self.folder))
            limit_s = None
            if LIMIT in names:
                with open(os.path.join(self.folder, LIMIT)) as file:
                    limit_s = float(file.read())
        except (OSError, ValueError):  # the disk does not respond, or the number is still being written
            return False, None
        return END in names or f"{END}.{self.name}" in names, limit_s


class Signals:
    """The received signals, as bytes in a pipe that wakes `select`."""

    def __init__(self) -> None:
        self._reads, writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes)
        # All these signals have handlers, because some may be meant for the user's processes and must not end the
        # server.
        for name in ("TERM", "INT", "CHLD", "HUP", "USR1", "USR2"):
            # A handler that does nothing, because children would inherit SIG_IGN.
            signal.signal(getattr(signal, "SIG" + name), lambda *_: None)

    def fileno(self) -> int:
        return self._reads

    def arrived(self) -> "set[int]":
        try:
            return set(os.read(self._reads, 4096))
        except BlockingIOError:
            return set()


class Lease:
    """The file that keeps this step alive. Any change of the file's times renews the lease, so the clocks of client and
    node need not agree.
    """

    def __init__(self, path: str, lease_s: float) -> None:
        self._path, self.lease_s = path, lease_s
        write(path, "")
        self._seen = self._look()
        self._ends = time.monotonic() + lease_s + FIRST_LEASE_S

    def _look(self) -> "tuple[int, int]":
        status = os.stat(self._path)
        return status.st_ino, status.st_mtime_ns

    def has_run_out(self) -> bool:
        try:
            seen = self._look()
        except OSError:  # the file was deleted, which is no renewal
            seen = self._seen
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._ends = seen, now + self.lease_s
        return now >= self._ends


class Notice:
    """The file with the time at which Slurm takes the node away. Of several announced times, the earliest counts."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._at = float("inf")

    def tell(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if at < self._at - 1.0:  # do not write the same time again
            self._at = at
            write(self.path, f"{seconds:g}")


class Server:
    """Serves connections until the step ends. ``local``: this server's own folder on this node."""

    def __init__(self, node: Node, local: str, signals: Signals, lease_s: float, grace_s: float) -> None:
        self._node, self._signals, self._grace_s = node, signals, grace_s
        self._sshd = [which("sshd", node), "-i", "-e", "-f", f"{local}/sshd_config"]
        host_key = make_host_key(f"{local}/host_key", node)
        write(f"{local}/sshd_config", CONFIG.format(here=local))
        write(f"{local}/session", session(dict(os.environb)))
        self._copy_keys(f"{local}/authorized_keys")
        self._lease = Lease(f"{local}/lease", lease_s)
        self._notice = Notice(f"{local}/notice")
        self._taken = False  # whether Slurm has announced that it will end the step
        # Whether the step ends without a request of the client: its lease or its lifetime is over.
        self.abandoned = False
        path = f"{local}/ssh"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._listener.setblocking(False)
        node.publish(
            {
                "address": own_address(node.name),
                "host_key": host_key,
                "socket": path,
                "lease": f"{local}/lease",
                "notice": self._notice.path,
            }
        )

    def _copy_keys(self, to: str) -> None:
        source = os.path.join(self._node.folder, KEYS)
        try:
            shutil.copyfile(source, to)
        except OSError as error:
            raise Unusable(f"{source} cannot be read on node {self._node.name}: {error.strerror}") from error

    def serve(self, lifetime_s: float) -> None:
        dies = time.monotonic() + lifetime_s if lifetime_s else float("inf")
        why = ""
        try:
            while not why:
                ready, _, _ = select.select([self._listener.fileno(), self._signals.fileno()], [], [], LOOK_S)
                if self._listener.fileno() in ready:
                    self._connect()
                why = self._ends(self._signals.arrived())
                if time.monotonic() >= dies:
                    why, self.abandoned = f"its lifetime of {lifetime_s:g} s is over", True
        finally:
            self._node.withdraw()
            self._listener.close()
        sys.stderr.write(f"outrider: the step on {self._node.name} ends: {why}\n")

    def _connect(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client has closed the connection already
            return
        with connection:
            streams = []  # type: list[int]
            try:
                streams = handed_over(connection)
                end = connection.fileno()
                ends = (*streams, end) if streams else (end, end, None)
                child = subprocess.Popen(self._sshd, stdin=ends[0], stdout=ends[1], stderr=ends[2])  # noqa: S603
            except OSError as error:  # no process can be started now; the client connects again
                sys.stderr.write(f"outrider: sshd cannot be started: {error}\n")
            else:
                child.returncode = 0  # keeps Popen from waiting for the child: `reaped` reaps the child and its orphans
            for each in streams:
                os.close(each)

    def _ends(self, arrived: "set[int]") -> str:
        """Return the reason for which this step ends now; empty: the step continues."""
        end, limit_s = self._node.orders()
        any_left = reaped()
        if end:
            return "its client has said so"
        if signal.SIGINT in arrived:
            return "it was interrupted"
        if self._lease.has_run_out():
            self.abandoned = True
            return f"nobody has renewed its lease for {self._lease.lease_s:g} s"
        if limit_s is not None:
            self._notice.tell(limit_s)
        if signal.SIGTERM in arrived:
            self._taken = True
            self._notice.tell(self._grace_s)
        if self._taken and not any_left:
            return "Slurm ends it, and nothing runs in it"
        return ""


def handed_over(connection: socket.socket) -> "list[int]":
    """Return the descriptors that a relay passes with its first byte: for input and output. Empty: the relay passes
    none, and carries the bytes itself.
    """
    connection.settimeout(HAND_OVER_S)
    ancillary = connection.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("ii")))[1]
    connection.settimeout(None)
    return list(struct.unpack("ii", ancillary[0][2])) if ancillary else []


# --- files and folders ------------------------------------------------------------------------------------------------


def local_folder(node: Node) -> str:
    """Create a folder on this node's own disk, and remove the folders of servers that were killed.

    The folder is not in XDG_RUNTIME_DIR: that folder is removed when the user's last login on the node ends, even while
    a job runs.
    """
    for base in (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        name = f"{PREFIX}{node.job}-{node.name[:20]}-"
        if not SAFE.fullmatch(f"{base}/{name}") or len(f"{base}/{name}12345678/ssh") > SOCKET_BYTES:
            continue
        try:
            remove_abandoned(base)
            folder = tempfile.mkdtemp(prefix=name, dir=base)
        except OSError:
            continue
        os.chmod(folder, 0o700)
        hold(f"{folder}/lock")
        return folder
    raise Unusable(f"node {node.name} has no folder for a socket: neither $TMPDIR nor /tmp can be written to")


def hold(path: str) -> "int | None":
    """Lock the file for the life of this process. Return the descriptor; None: another process has the lock."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def remove_abandoned(base: str) -> None:
    """Remove the folders whose server is dead. A folder that has no lock file yet may be new, and stays."""
    for name in os.listdir(base):
        folder = os.path.join(base, name)
        if name.startswith(PREFIX) and os.path.exists(f"{folder}/lock"):
            try:
                if os.lstat(folder).st_uid != os.getuid():
                    continue
                held = hold(f"{folder}/lock")
            except OSError:
                continue
            if held is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def which(program: str, node: Node) -> str:
    path = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *WHERE_SSHD_IS]))
    if path is None:
        raise Unusable(
            f"node {node.name} has no {program}, in PATH or {' '.join(WHERE_SSHD_IS)}: have its administrators install "
            "OpenSSH's server there, which needs not run, or put one into PATH by a line of Slurm(setup=[...])"
        )
    return path


def make_host_key(path: str, node: Node) -> str:
    command = [which("ssh-keygen", node), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)  # noqa: S603
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise Unusable(f"ssh-keygen makes no host key on node {node.name}: {message[-500:]}")
    with open(f"{path}.pub") as file:
        return " ".join(file.read().split()[:2])


def session(environment: "dict[bytes, bytes]") -> bytes:
    """Return the shell script that runs every command of a connection. The script sets the step's variables, and, if sh
    is bash, its exported functions. Variables with names such as ``a.b`` are left out, because a shell cannot set them.
    """
    lines, functions = [], []
    for name, value in sorted(environment.items()):
        if NOT_PASSED.fullmatch(os.fsdecode(name)):
            continue
        function = FUNCTION.fullmatch(name)
        if VARIABLE.fullmatch(name):
            lines.append(b"export %s=%s || export %s" % (name, quoted(value), name))
        elif function:
            text = function.group(1) + b" " + value
            functions.append(b'[ -z "$2" ] || { eval %s && export -f %s; }' % (quoted(text), function.group(1)))
    # POSIXLY_CORRECT comes last: it changes bash's behaviour as soon as it is set.
    lines.sort(key=lambda line: line.startswith(b"export POSIXLY_CORRECT="))
    return SESSION % b"\n".join([b":", *functions, *lines])


def quoted(each: bytes) -> bytes:
    return b"'" + each.replace(b"'", b"'\\''") + b"'"


def own_address(node: str) -> str:
    """Return the address at which other nodes reach this node: the address of its host name, unless that is the
    loopback address.
    """
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(node)
        if not address.startswith("127."):
            return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            # connect() on a UDP socket sends nothing: it only chooses the local address.
            sock.connect((os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.1"), 9))
            return str(sock.getsockname()[0])
        except OSError:
            return ""


def write(path: str, text: "str | bytes") -> None:
    """Write a file atomically."""
    new = f"{path}.{os.getpid()}.new"
    with open(new, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
        file.flush()
        os.fsync(file.fileno())  # without this, another node may not see the file
    os.replace(new, path)


# --- ending processes -------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose own parent dies."""
    try:
        import ctypes

        failed = ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, <linux/prctl.h>
    except (ImportError, OSError, AttributeError):
        failed = -1
    if failed:
        sys.stderr.write("outrider: this Python cannot adopt orphans, so what they do is ended by Slurm alone\n")


def reaped() -> bool:
    """Reap the children that have ended. Return whether other children still run."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def end_descendants(within_s: float) -> None:
    """Kill all descendants of this process, until none is left."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    sys.stderr.write(f"outrider: process {pid} cannot be killed: {error.strerror}\n")
        if not reaped():
            return
        time.sleep(0.01)


def descendants(root: int) -> "list[int]":
    children = {}  # type: dict[int, list[int]]
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:  # the process has just ended
                continue
            if state not in {b"Z", b"X"}:
                children.setdefault(int(parent), []).append(int(name))
    processes = []  # type: list[int]
    waiting = [root]
    while waiting:
        of_it = children.get(waiting.pop(), [])
        processes += of_it
        waiting += of_it
    return processes


if __name__ == "__main__":
    sys.exit(main())
