"""Turn what Docker's and Podman's commands say when they fail into errors with whose fault it is and the next step.
No I/O.

Their own words are in every error. An answer that the daemon or the host did not give is lost, and worth another try; a
refusal is not.
"""

from __future__ import annotations

import re

from ..cloud.failures import redacted
from ..command_errors import Meaning, interrupted, meant
from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError
from ..login_host import AGAIN_S, Ended

BUSY_S = 60.0
MOST = 400  # characters of a command's words in an error
_MEANINGS = (
    Meaning(
        NotAuthorized,
        "this user may not use Docker",
        "Add the user to the group `docker` there and log in anew, or write runtime=['sudo', '-n', 'docker'].",
        (r"permission denied.*(docker\.sock|docker daemon|podman\.sock|docker api)",),
    ),
    Meaning(
        HostAway,
        "Docker's daemon does not answer",
        "Start it there: `sudo systemctl start docker`.",
        ("cannot connect to the docker daemon|is the docker daemon running|error during connect",),
        AGAIN_S,
    ),
    Meaning(
        NotAuthorized,
        "the registry lets this user have no such image",
        "Look for a misspelling; of a private image, log in there with `docker login` or `podman login`.",
        ("pull access denied|requested access .* is denied|unauthorized|authentication required|denied: ",),
    ),
    Meaning(
        BadRequest,
        "there is no such image",
        "Look for a misspelling of its name and tag; an image that is there alone is not pulled with pull='never'.",
        (
            "manifest (for .* )?(unknown|not found)|name unknown|repository .*not found|image not known|no such image",
            "invalid reference format|short-name .* did not resolve",
        ),
    ),
    Meaning(
        NoCapacity,
        "the registry limits how often images are pulled",
        "",
        ("toomanyrequests|rate limit",),
        BUSY_S,
    ),
    Meaning(
        BadRequest,
        "the image has no shell, which the container's first process is",
        "Use an image that has /bin/sh: the `slim` ones do, `distroless` and `scratch` do not.",
        ('exec: "?/bin/sh"?.*(no such file|not found)|executable file .?/bin/sh.? not found',),
    ),
    Meaning(
        BadRequest,
        "the image is for another architecture than the host's",
        "Give the image of the host's architecture, or options={'platform': ...} where the host emulates another.",
        ("exec format error|no matching manifest|does not match the specified platform",),
    ),
    Meaning(
        BadRequest,
        "the host gives its GPUs to no container",
        "Install NVIDIA's container toolkit there; Podman needs `nvidia-ctk cdi generate` run there.",
        (r"could not select device driver|unresolvable cdi|nvidia\.com/gpu",),
    ),
    Meaning(
        BadRequest,
        "it is asked for more processors or memory than the host has, or may give",
        "Ask for less by Pool(vcpus=, memory_gb=); rootless Podman needs cgroup v2 with delegated controllers.",
        ("range of cpus is from|minimum memory limit|controller .*(not available|is not)|cgroup v2|cpu cfs quota",),
    ),
    Meaning(
        BadRequest,
        "it has no such option",
        "`docker run --help` or `podman run --help` there lists the names for Containers(options={...}).",
        ("unknown (shorthand )?flag|invalid argument .* for",),
    ),
    Meaning(NoCapacity, "the host's disk is full", "", ("no space left on device",), BUSY_S),
    Meaning(
        HostAway,
        "the registry is not reached",
        "",
        ("dial tcp|i/o timeout|no such host|tls handshake|connection refused|connection reset|eof$",),
        AGAIN_S,
    ),
)
_LOG = re.compile(r'^time="[^"]*" level=\w+ msg=')


def error_of(command: str, ended: Ended, where: str) -> ProviderError:
    """Return the error of a command that has failed: ``"podman pull"`` on a host, or ``"here"``."""
    said = words_of(ended.stderr or ended.stdout)
    quoted = f": {said}" if said else ""
    error = meant(said, _MEANINGS, lambda words: f"{command} {where} failed, as {words}{quoted}")
    error = error or interrupted(command, ended, where, quoted)
    return error or ProviderError(f"{command} {where} ended with status {ended.status}{quoted}")


def words_of(text: str) -> str:
    """Return the last line that a command has printed without its own log's, shortened and without secrets."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not _LOG.match(line) and not line.startswith(("See '", "Run '"))] or lines
    last = next((line for line in reversed(told) if line.lower().startswith("error")), told[-1] if told else "")
    return redacted(last[-MOST:])
