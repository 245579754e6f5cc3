"""Users' errors for failed bootstraps. The advice in an error depends on the output of the failed command."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

from ..api.errors import BootstrapError

INSTALL = "pip install uv"  # Outrider requires uv as a package, except on platforms for which uv has no wheel
LOG_LINES = 20  # maximum number of output lines in an error message


class Hint(NamedTuple):
    text: str  # the advice, as one clause
    # whether every host would fail in the same way, for example because the image names a package that does not exist
    systematic: bool = False


_OFFLINE = "have packages fetched on this computer: Image(offline=True)"
_PYTHON = "install the right Python on that host, or name it: Image(python='/path/to/python3')"
_BY_HAND = "run the command there by hand to see more"
_LONGER = "if it only was slow, raise Image(bootstrap_timeout=...)"
_KEYS = "Volume(credentials={'AWS_ACCESS_KEY_ID': Secret.env('AWS_ACCESS_KEY_ID'), ...})"

# Known failures: pattern for a command's output -> advice. The first pattern that matches is used.
_DISK = {
    r"no space left on device|disk quota exceeded|os error 28\b": Hint(
        "free space on that disk, or set OUTRIDER_CACHE in the host's environment to a folder on another"
    ),
}
_CACHE = {
    "read-only file system|cache .* cannot be written": Hint(
        "set OUTRIDER_CACHE in the host's environment to a folder that this user can write"
    ),
}
_CERTIFICATE = {
    "invalid peer certificate|certificate verify|unknownissuer|tls handshake": Hint(
        f"the host does not trust the index's certificate: install it there, or {_OFFLINE}"
    ),
}
_MODULES = {
    r"no module named '?_?(ctypes|ssl|asyncio|multiprocessing|json|concurrent)": Hint(
        "its Python is not whole (python3-minimal?): install the package python3 there"
    ),
}
_APT = {
    r"unable to locate package|has no installation candidate|version '.*' for '.*' was not found": Hint(
        "check the names in Image(apt=...): this host's release of Debian or Ubuntu may call them differently"
    ),
    "could not get lock|unable to (acquire|lock)": Hint(
        "another installer runs on that host: wait for it, or end it (`ps aux | grep -e apt -e dpkg`)"
    ),
    "temporary failure resolving|could not resolve|failed to fetch|unable to connect|timed out": Hint(
        "see whether that host reaches its Debian mirror, or install by hand there what Image(apt=...) names"
    ),
}
_PACKAGES = {
    "hash-checking is required|in `--require-hashes` mode": Hint(
        "once a requirement has a hash, every package needs ==, its version and its hash: have them written by "
        "`uv pip compile --generate-hashes`, or give Image(lock=...)",
        systematic=True,
    ),
    r"hash(es)? (mismatch|for)": Hint(
        "the index serves other files than the lock names: name the right index, Image(pip_indexes=[...]), or lock "
        "again if the package was meant to change; otherwise somebody has put another file in its place",
        systematic=True,
    ),
    "401 unauthorized|403 forbidden|invalid credentials|authentication": Hint(
        "give the index its password: Image(pip_indexes=[Secret('https://user:password@host/simple')])", systematic=True
    ),
    **_CERTIFICATE,
    "timed? ?out|timeout": Hint(f"the index does not answer: check it, or {_OFFLINE}"),
    "dns error|failed to lookup|connection refused|network is unreachable|error sending request": Hint(
        f"the index cannot be reached: open the way, or {_OFFLINE}"
    ),
    "no solution found|not found in the package registry|was not found in the provided package locations"
    "|there (is|are) no versions? of|has no wheels with a matching": Hint(
        "check the names and versions of the packages, or name an index that has them: Image(pip_indexes=[...])",
        systematic=True,
    ),
    r"error: command .*(gcc|cc|g\+\+)|gcc: not found|failed to build": Hint(
        "a package is compiled there: give it a compiler, Image(apt=['build-essential']), or take one that has a wheel"
    ),
}
_VOLUMES = {
    "there is no bucket|nosuchbucket": Hint(
        "check the bucket's name; one of another store than Amazon's needs Volume(endpoint=...)", systematic=True
    ),
    "there is nothing in s3:": Hint("check the prefix: nothing is below it", systematic=True),
    "nocredentialproviders|no valid providers|failed to refresh cached credentials|ec2rolerequest": Hint(
        f"give the nodes an instance profile, AWS(instance_profile=...), or say {_KEYS}", systematic=True
    ),
    "expiredtoken|token.* expired": Hint(
        "the credentials have expired: get new ones, or give the nodes an instance profile", systematic=True
    ),
    "invalidaccesskeyid|signaturedoesnotmatch|invalidtoken": Hint(
        "the store does not know these credentials: check both halves of the key, and whose store it is",
        systematic=True,
    ),
    "accessdenied|access denied|forbidden|status code: 403": Hint(
        "allow s3:ListBucket on the bucket and s3:GetObject on its objects (and, to write, s3:PutObject, "
        "s3:DeleteObject and s3:AbortMultipartUpload) to whoever the nodes are",
        systematic=True,
    ),
    "requesttimetooskewed": Hint("set that host's clock: stores refuse requests that are more than 15 minutes off"),
    "permanentredirect|authorizationheadermalformed|movedpermanently|illegallocationconstraint": Hint(
        "the bucket is in another region: name it, Volume(region=...)", systematic=True
    ),
    "x509|certificate": Hint(
        "the host does not trust the store's certificate: install it there, or name its file in AWS_CA_BUNDLE"
    ),
    "no such host|connection refused|i/o timeout|network is unreachable|no route to host|did not answer"
    "|deadline exceeded|timeout awaiting|connection reset|server misbehaving": Hint(
        "see whether that host reaches the store: its network, a VPC endpoint or NAT for S3, Volume(endpoint=...)"
    ),
    "no /dev/fuse|fuse device not found|mount failed: operation not permitted|modprobe fuse": Hint(
        "load it there (`modprobe fuse`); a container needs --device /dev/fuse --cap-add SYS_ADMIN"
    ),
    "is .* there, and that": Hint("mount= leads there to a folder of the system, by a link: name another"),
    "has been busy with": Hint("see what that pool waits for, or choose another mount="),
    "is not empty|is mounted at .* already|has mounted|the folder .* cannot be used|cannot be taken away": Hint(
        "choose another mount=, or free that one: a volume takes an empty folder, or one that is not there yet"
    ),
}
_NO_INTERPRETER = {
    "no interpreter found|downloads? .*(disabled|never)|failed to (download|install)": Hint(_PYTHON),
}
_KNOWN = {
    "run": _DISK,
    "volumes": _VOLUMES,
    "apt": {**_DISK, **_CACHE, **_APT, **_CERTIFICATE, **_MODULES},
    "packages": {**_DISK, **_CACHE, **_PACKAGES, **_MODULES},
    "python": {**_DISK, **_CACHE, **_CERTIFICATE, **_NO_INTERPRETER, **_MODULES},
}
_KNOWN_ELSEWHERE = {**_DISK, **_CACHE, **_CERTIFICATE, **_MODULES}
_BY_PHASE = {
    "probe": "log in there with the same user and key, and run `uname -a; python3 -V`",
    "upload": "see whether the user can write into the cache, and whether tar and gzip are there",
    "python": _PYTHON,
    "apt": _BY_HAND,
    "packages": _BY_HAND,
    "files": "see whether the user can write into the cache",
    "volumes": "try it there by hand, with rclone, to see more",
    "run": f"{_BY_HAND}: it ran in the folder of the includes, with the image's Python first in PATH",
    "executor": "see the executor's own log, at the end of the lines below",
}
_WHEN_LATE = {
    "probe": "see why that host does not answer: log in there, and look at its load and its disks",
    "apt": f"see whether that host reaches its Debian mirror; {_LONGER}",
    "packages": f"see whether the index answers that host, or {_OFFLINE}; {_LONGER}",
    "python": f"{_PYTHON}; {_LONGER}",
    "volumes": f"see whether that host reaches the store; {_LONGER}",
}


def hint_for(phase: str, texts: Sequence[str], *, exit_status: int | None = None, timed_out: bool = False) -> Hint:
    text = "\n".join(texts)
    for pattern, hint in _KNOWN.get(phase, _KNOWN_ELSEWHERE).items():
        if re.search(pattern, text, re.IGNORECASE):
            return hint
    if timed_out:
        return Hint(_WHEN_LATE.get(phase, f"see what it did last, below; {_LONGER}"))
    if exit_status in (-9, 137) or "ended with signal KILL" in text:
        return Hint("the host killed it, as it does when its memory is full: use a larger one, or do less at once")
    return Hint(_BY_PHASE.get(phase, "try again"))


_NO_LOGIN = re.compile(r"account is (currently )?not available|nologin|does not allow .*log ?in", re.IGNORECASE)
_NO_COMMAND = re.compile(r"not allowed|only allowed|restricted|forced command|command not found", re.IGNORECASE)


def no_shell(stdout: bytes, stderr: bytes, status: int | None) -> str:
    """Return advice for a login that does not run ``sh`` as expected. Empty: use the general advice for the phase."""
    output = b"\n".join([stdout, stderr]).decode(errors="replace")
    if _NO_LOGIN.search(output):
        return "give this user a login shell there (`chsh -s /bin/sh USER`), or log in as another, SSH(user=...)"
    if _NO_COMMAND.search(output) or (status == 0 and output.strip()):
        return (
            "see whether a forced command runs in place of it: command= before the key in ~/.ssh/authorized_keys, or "
            "ForceCommand in sshd_config. Nodes need a login that runs any command"
        )
    if not output.strip():
        return (
            "look for a line that ends the shell, such as `exit` or `exec`, in ~/.bashrc, ~/.profile and the like: "
            "they have to let commands that are not interactive through. `ssh HOST 'sh -c true; echo $?'` shows it"
        )
    return ""


class Facts(TypedDict, total=False):
    """Keyword arguments of `bootstrap_error` that describe a failure."""

    command: str | None
    exit_status: int | None
    log: Sequence[str]
    hint: str
    timed_out: bool


def bootstrap_error(
    phase: str,
    reason: str,
    *,
    command: str | None = None,
    exit_status: int | None = None,
    log: Sequence[str] = (),
    hint: str = "",
    systematic: bool = False,
    timed_out: bool = False,
    scrub: Callable[[str], str] = str,
) -> BootstrapError:
    """Return the error for a failed bootstrap.

    ``hint``: the advice; empty: choose it by the output in ``log``. ``scrub``: removes secrets from a text.
    """
    reason, log = scrub(reason), [scrub(line) for line in log[-LOG_LINES:]]
    known = hint_for(phase, [reason, *log], exit_status=exit_status, timed_out=timed_out)
    hint = hint or known.text
    story = "".join(f"\n  | {line}" for line in log)
    return BootstrapError(
        f"Bringing the image failed in phase {phase}: {reason}. Next: {hint}.{story}",
        phase=phase,
        command=command and scrub(command),
        exit_status=exit_status,
        log=log,
        hint=hint,
        systematic=systematic or known.systematic,
    )
