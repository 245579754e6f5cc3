"""Classify failures of Slurm's commands: errors with the responsible party and the next step. No I/O.

SLURMERR-1: only failures that may be temporary allow a retry: the controller, munge, and time-outs.
SLURMERR-2: Slurm's own words are in every error.
"""

from __future__ import annotations

import re

from ..command_errors import Meaning, interrupted, meant
from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from ..login_host import AGAIN_S, Ended

NO_COMMAND = 127
MOST = 600  # longest part of a command's output (characters) in an error


_SINFO = "`sinfo -s` lists the partitions."
_LIMITS = "`sacctmgr show assoc where user=$USER` and `sacctmgr show qos` say the limits: ask for less."
_MEANINGS = (
    Meaning(
        HostAway,
        "Slurm's authentication fails",
        "Have munge looked at on the login host: `munge -n | unmunge`.",
        ("munge", "protocol authentication", r"invalid (?:\w+ )*credential", "authentication plugin"),
        AGAIN_S,
    ),
    Meaning(
        HostAway,
        "Slurm's controller does not answer",
        "`scontrol ping` on the login host says whether it is up.",
        (
            "unable to contact slurm controller",
            "connect failure",
            "connection refused",
            "socket timed out",
            "zero bytes were trans",
            "unable to establish (?:controller|configuration)",
            "controller is (?:not responding|in standby)",
            "temporarily unable",
            "message receive failure",
            "communication connection failure",
            "connection timed out",
            "broken pipe",
            "unexpected message received",
        ),
        AGAIN_S,
    ),
    Meaning(BadRequest, "There is no such partition", _SINFO, ("invalid partition",)),
    Meaning(
        NotAuthorized,
        "Slurm does not know this user's account, or it may not use this partition",
        "`sacctmgr show assoc where user=$USER` lists your accounts: name one with Slurm(account=...).",
        ("invalid account or account/partition",),
    ),
    Meaning(BadRequest, "There is no such QOS for this account", "`sacctmgr show qos` lists them.", ("invalid qos",)),
    Meaning(
        QuotaExceeded,
        "A limit of the account or of its QOS is reached",
        _LIMITS,
        ("accounting/qos policy", "job submit limit", "qosmax", "assocmax", "assocgrp", "qosgrp", "maxsubmit"),
    ),
    Meaning(
        BadRequest,
        "The cluster has no such device",
        "`sinfo -o '%P %G'` lists them: Slurm(gres='gpu:TYPE:COUNT').",
        ("invalid generic resource", "invalid gres", "gres.*invalid", "invalid trackable resource"),
    ),
    Meaning(
        BadRequest,
        "The time limit is not allowed",
        "`scontrol show partition` says the longest: Slurm(time=...).",
        ("time limit.*(?:invalid|exceeds|partition)", "time limit specification"),
    ),
    Meaning(
        BadRequest,
        "The partition never has so many nodes for a job",
        _SINFO,
        ("node count specification", "more nodes than", "too many nodes", "nodes.*exceed"),
    ),
    Meaning(
        BadRequest,
        "No node has what is asked for",
        "`sinfo -o '%P %D %c %m %G %f'` lists what the nodes have.",
        (
            "node configuration is not available",
            "memory specification",
            "more processors",
            "invalid feature",
            "can ?not be satisfied",
            "cpu count per node",
        ),
    ),
    Meaning(
        NotAuthorized,
        "Slurm refuses this user",
        "Ask the site's administrators: the account may be locked, or not allowed in this partition.",
        ("user.*(?:not permitted|denied|not allowed)", "access/permission denied", "account.*locked", "invalid user"),
    ),
    Meaning(
        BadRequest,
        "sbatch does not take an option",
        "Look at Slurm(options={...}), and at `man sbatch` there.",
        ("unrecognized option", "invalid option", "invalid argument", "ambiguous", "invalid --", "bad value"),
    ),
    Meaning(ProviderError, "Slurm does not know the job any more", "", ("invalid job id",)),
    Meaning(
        BadRequest,
        "The job depends on one that is not there, or in a way that Slurm does not know",
        "`squeue --me` lists your jobs: Slurm(options={'dependency': 'afterok:4711'}).",
        ("dependency problem",),
    ),
    Meaning(
        BadRequest,
        "The cluster has no such reservation, or this user may not use it",
        "`scontrol show reservation` lists them.",
        ("reservation is invalid", "invalid reservation", "reservation.*(?:denied|not (?:available|permitted))"),
    ),
    Meaning(BadRequest, "There is no such license", "`scontrol show licenses` lists them.", ("invalid license",)),
    Meaning(BadRequest, "There is no such node", "`sinfo -N` lists them.", ("invalid node name",)),
    Meaning(NoCapacity, "No node is up", "`sinfo -R` says why.", ("down, drained", "no nodes available"), AGAIN_S),
    Meaning(
        BadRequest,
        "The job's folder cannot be written on the login host",
        "Look at `quota` and `df ~` there; OUTRIDER_CACHE names another folder, which the nodes must see as well.",
        ("no space left", "disk quota", "read-only file system", "permission denied", "file exists"),
    ),
    # The last entry of the table: sbatch or the Slurm controller reports a mistake in the request, so no job exists.
    Meaning(
        BadRequest,
        "Slurm does not take the job as it is asked for",
        "Look at the options of Slurm(...), and at `man sbatch` there.",
        (r"sbatch: (?:error|fatal): .*\b(?:invalid|unrecognized|unsupported|illegal|missing|unknown)\b",),
    ),
)


def error_of(command: str, ended: Ended, where: str = "here") -> ProviderError:
    """Return the error for a failed command. ``where`` names the host in the text: "here", or "on login"."""
    text = " ".join(f"{ended.stderr}\n{ended.stdout}".split())[:MOST]
    quoted = f": {command} says {text!r}" if text else f": {command} ended with status {ended.status}, and says nothing"
    if ended.status == NO_COMMAND or re.search(rf"\b{re.escape(command)}\b.*(?:not found|no such file)", text, re.I):
        return BadRequest(
            f"There is no {command} {where}{quoted}",
            code="NoSlurm",
            advice="Name the login host, Slurm(host='login'), or have its PATH lead to Slurm without a terminal.",
        )
    error = interrupted(command, ended, where, quoted) or meant(text, _MEANINGS, lambda words: f"{words}{quoted}")
    return error or ProviderError(f"Slurm refuses what it is asked for{quoted}")


def is_refusal(error: ProviderError) -> bool:
    """Return whether the command certainly had no effect: Slurm refused it with a known message."""
    return not isinstance(error, HostAway) and type(error) is not ProviderError


def refuse_failed(command: str, ended: Ended, where: str) -> None:
    """Raise the error if a command has failed.

    Raises:
        ProviderError
    """
    if ended.status != 0:
        raise error_of(command, ended, where)
